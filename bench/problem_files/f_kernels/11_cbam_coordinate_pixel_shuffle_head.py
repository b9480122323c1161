import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, ch, cond, scale, reduction):
        super().__init__()
        self.scale = scale
        self.v_in = nn.Parameter(torch.randn(ch, 3, 3, 3))
        self.g_in = nn.Parameter(torch.rand(ch) + 0.5)
        self.b_in = nn.Parameter(torch.zeros(ch))
        self.w_mid = nn.Parameter(torch.randn(ch, ch, 3, 3) * 0.1)
        u, mat = torch.randn(ch), self.w_mid.detach().flatten(1)
        for _ in range(15):
            v = F.normalize(mat.T @ u, dim=0)
            u = F.normalize(mat @ v, dim=0)
        self.register_buffer("u", u)
        self.register_buffer("v", v)
        self.film = nn.Linear(cond, 2 * ch)
        mid = ch // reduction
        self.mlp = nn.Sequential(nn.Linear(ch, mid), nn.ReLU(), nn.Linear(mid, ch))
        self.spatial = nn.Conv2d(2, 1, 7, padding=3)
        self.squeeze = nn.Conv2d(ch, mid, 1)
        self.register_buffer("bn_mean", 0.1 * torch.randn(mid))
        self.register_buffer("bn_var", torch.rand(mid) + 0.5)
        self.bn_weight = nn.Parameter(torch.rand(mid) + 0.5)
        self.bn_bias = nn.Parameter(0.1 * torch.randn(mid))
        self.to_h = nn.Conv2d(mid, ch, 1)
        self.to_w = nn.Conv2d(mid, ch, 1)
        self.layer_scale = nn.Parameter(0.1 * torch.randn(ch, 1, 1))
        self.up = nn.Conv2d(ch, 3 * scale * scale, 3, padding=1)

    def forward(self, x, cond):
        w = self.v_in * (self.g_in / self.v_in.flatten(1).norm(dim=1)).view(-1, 1, 1, 1)
        f = F.conv2d(F.pad(x, (1, 1, 1, 1), mode="reflect"), w, self.b_in)
        mat = self.w_mid.flatten(1)
        sigma = torch.dot(self.u, mat @ self.v)
        y = F.conv2d(f, self.w_mid / sigma, padding=1)
        gamma, beta = self.film(cond).chunk(2, dim=1)
        y = F.leaky_relu(y * (1 + gamma[..., None, None]) + beta[..., None, None], 0.1)
        ca = torch.sigmoid(self.mlp(y.mean((2, 3))) + self.mlp(y.amax((2, 3))))
        y = y * ca[..., None, None]
        sa = torch.cat((y.mean(1, keepdim=True), y.amax(1, keepdim=True)), 1)
        y = y * torch.sigmoid(self.spatial(sa))
        h, wd = y.shape[2:]
        pool_h = y.mean(3, keepdim=True)
        pool_w = y.mean(2, keepdim=True).transpose(2, 3)
        co = self.squeeze(torch.cat((pool_h, pool_w), 2))
        co = F.hardswish(F.batch_norm(co, self.bn_mean, self.bn_var, self.bn_weight, self.bn_bias, training=False))
        co_h, co_w = co.split([h, wd], dim=2)
        y = y * torch.sigmoid(self.to_h(co_h)) * torch.sigmoid(self.to_w(co_w.transpose(2, 3)))
        y = f + self.layer_scale * y
        sr = F.pixel_shuffle(self.up(y), self.scale)
        base = F.interpolate(x, scale_factor=self.scale, mode="bicubic", align_corners=False)
        return (base + 0.2 * sr).clamp(-2.0, 2.0), ca


def get_inputs():
    x = torch.randn(2, 3, 37, 53).contiguous(memory_format=torch.channels_last)
    return [x, torch.randn(2, 13)]


def get_init_inputs():
    return [30, 13, 3, 4]
