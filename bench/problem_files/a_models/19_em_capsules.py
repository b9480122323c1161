import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class PrimaryCaps(nn.Module):
    """Poses (4x4) and activations from one 1x1 convolution each, concatenated on the last axis."""

    def __init__(self, a, b, psize=4):
        super().__init__()
        self.pose, self.a = nn.Conv2d(a, b * psize * psize, 1), nn.Conv2d(a, b, 1)

    def forward(self, x):
        return torch.cat([self.pose(x), torch.sigmoid(self.a(x))], dim=1).permute(0, 2, 3, 1).contiguous()


class ConvCaps(nn.Module):
    """Convolutional or fully shared (class) capsules with EM routing."""

    def __init__(self, B, C, K, stride, iters, w_shared=False, coords=False):
        super().__init__()
        self.B, self.C, self.K, self.stride, self.iters = B, C, K, stride, iters
        self.P, self.w_shared, self.coords = 4, w_shared, coords
        self.beta_u, self.beta_a = nn.Parameter(torch.zeros(C)), nn.Parameter(torch.zeros(C))
        n_in = B if w_shared else K * K * B
        self.weights = nn.Parameter(torch.randn(1, n_in, C, 4, 4) * 0.5)

    def patches(self, x):
        oh, ow = [(s - self.K) // self.stride + 1 for s in x.shape[1:3]]
        hs = [[self.stride * o + k for k in range(self.K)] for o in range(oh)]
        ws = [[self.stride * o + k for k in range(self.K)] for o in range(ow)]
        x = x[:, hs, :, :]
        x = x[:, :, :, ws, :]
        return x.permute(0, 1, 3, 2, 4, 5).contiguous(), oh, ow

    def votes(self, p):
        b, n = p.shape[:2]
        p = p.view(b, n, 1, self.P, self.P)
        w = self.weights
        if self.w_shared:
            w = w.repeat(1, n // w.shape[1], 1, 1, 1)
        return torch.matmul(p, w).flatten(3)

    def add_coords(self, v, b, h, w):
        v = v.view(b, h, w, self.B, self.C, -1)
        ys = torch.arange(h, device=v.device, dtype=v.dtype) / h
        xs = torch.arange(w, device=v.device, dtype=v.dtype) / w
        off = torch.zeros(1, h, w, 1, 1, v.shape[-1], device=v.device, dtype=v.dtype)
        off[0, :, :, 0, 0, 0] = ys.view(h, 1)
        off[0, :, :, 0, 0, 1] = xs.view(1, w)
        return (v + off).view(b, h * w * self.B, self.C, -1)

    def routing(self, v, a_in):
        b, n, c, _ = v.shape
        r = v.new_full((b, n, c), 1.0 / c)
        for it in range(self.iters):
            lam = 0.01 * (1 - 0.95 ** (it + 1)) * 100
            r = r * a_in
            r = r / (r.sum(dim=2, keepdim=True) + 1e-4)
            r_sum = r.sum(dim=1, keepdim=True)
            coeff = (r / (r_sum + 1e-4)).unsqueeze(-1)
            mu = (coeff * v).sum(dim=1, keepdim=True)
            sq = (coeff * (v - mu).pow(2)).sum(dim=1, keepdim=True) + 1e-2
            cost = (self.beta_u.view(1, 1, c, 1) + 0.5 * sq.log()) * r_sum.unsqueeze(-1) / n
            a = torch.sigmoid(lam * (self.beta_a - cost.sum(dim=3).squeeze(1)))
            if it < self.iters - 1:
                ln_p = -(v - mu).pow(2) / (2 * sq) - 0.5 * sq.log() - 0.5 * math.log(2 * math.pi)
                r = F.softmax(ln_p.sum(dim=3) + torch.log(a + 1e-4).unsqueeze(1), dim=2)
        return mu.squeeze(1), a

    def forward(self, x):
        b, h, w, _ = x.shape
        d = self.B * self.P * self.P
        if not self.w_shared:
            x, oh, ow = self.patches(x)
            p = x[..., :d].contiguous().view(b * oh * ow, self.K * self.K * self.B, -1)
            a = x[..., d:].contiguous().view(b * oh * ow, self.K * self.K * self.B, 1)
            mu, a = self.routing(self.votes(p), a)
            return torch.cat([mu.view(b, oh, ow, -1), a.view(b, oh, ow, self.C)], dim=3)
        p, a = x[..., :d].reshape(b, h * w * self.B, -1), x[..., d:].reshape(b, -1, 1)
        v = self.votes(p)
        return self.routing(self.add_coords(v, b, h, w) if self.coords else v, a)


class Model(nn.Module):
    """Matrix capsules with EM routing, coordinate addition, spread loss and a pose decoder."""

    def __init__(self, A, B, C, D, E, iters, hw, margin):
        super().__init__()
        self.margin, self.E, self.hw = margin, E, hw
        self.stem = nn.Sequential(nn.Conv2d(1, A, 5, 2, 2, bias=False),
                                  nn.BatchNorm2d(A, eps=1e-3, momentum=0.1), nn.ReLU(inplace=True))
        self.primary = PrimaryCaps(A, B)
        self.conv1, self.conv2 = ConvCaps(B, C, 3, 2, iters), ConvCaps(C, D, 3, 1, iters)
        self.cls = ConvCaps(D, E, 1, 1, iters, w_shared=True, coords=True)
        self.dec = nn.Sequential(nn.Linear(16 * E, 512), nn.ReLU(True), nn.Linear(512, 1024), nn.ReLU(True),
                                 nn.Linear(1024, hw * hw), nn.Sigmoid())

    def forward(self, x, target):
        pose, a = self.cls(self.conv2(self.conv1(self.primary(self.stem(x)))))
        at = a.gather(1, target.unsqueeze(1))
        keep = F.one_hot(target, self.E).to(a.dtype)
        spread = (F.relu(self.margin - (at - a)).pow(2) * (1 - keep)).sum(dim=1).mean()
        rec = self.dec((pose * keep.unsqueeze(-1)).flatten(1))
        return spread + 5e-1 * (rec - x.flatten(1)).pow(2).mean(), a, pose


def get_inputs():
    return [torch.rand(5, 1, 30, 30), torch.randint(0, 7, (5,))]


def get_init_inputs():
    return [64, 8, 12, 12, 7, 3, 30, 0.9]
