import torch
import torch.nn as nn
import torch.nn.functional as F

B, IMG, WIN, C, HEADS, SHIFT = 16, 56, 7, 120, 5, 3


class Model(nn.Module):
    """Shifted window attention: cosine similarity with a learned per-head temperature,
    relative position bias gathered from a table, q and v biases without k bias."""

    def __init__(self, dim, heads, img, win, shift):
        super().__init__()
        self.heads, self.win, self.shift = heads, win, shift
        self.qkv_weight = nn.Parameter(torch.randn(3 * dim, dim) / dim ** 0.5)
        self.q_bias = nn.Parameter(torch.randn(dim) * 0.2)
        self.v_bias = nn.Parameter(torch.randn(dim) * 0.2)
        self.logit_scale = nn.Parameter(torch.log(5 * torch.ones(heads, 1, 1)))
        self.table = nn.Parameter(torch.randn((2 * win - 1) ** 2, heads) * 0.5)
        self.proj = nn.Linear(dim, dim)
        self.norm = nn.LayerNorm(dim)
        coords = torch.stack(torch.meshgrid(torch.arange(win), torch.arange(win), indexing="ij")).flatten(1)
        rel = (coords[:, :, None] - coords[:, None, :]).permute(1, 2, 0) + win - 1
        self.register_buffer("rel_index", rel[..., 0] * (2 * win - 1) + rel[..., 1])
        region = torch.zeros(img, img, dtype=torch.long)
        cnt = 0
        for hs in (slice(0, -win), slice(-win, -shift), slice(-shift, None)):
            for ws in (slice(0, -win), slice(-win, -shift), slice(-shift, None)):
                region[hs, ws] = cnt
                cnt += 1
        nw = img // win
        region = region.view(nw, win, nw, win).permute(0, 2, 1, 3).reshape(nw * nw, win * win)
        self.register_buffer("blocked", region[:, None, :] != region[:, :, None])

    def forward(self, x):
        b, h, w, c = x.shape
        win, nh = self.win, self.heads
        y = torch.roll(x, (-self.shift, -self.shift), dims=(1, 2))
        y = y.view(b, h // win, win, w // win, win, c).permute(0, 1, 3, 2, 4, 5)
        y = y.reshape(-1, win * win, c)
        bias = torch.cat([self.q_bias, torch.zeros_like(self.v_bias), self.v_bias])
        qkv = F.linear(y, self.qkv_weight, bias).reshape(y.shape[0], win * win, 3, nh, c // nh)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        attn = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).transpose(-2, -1)
        attn = attn * torch.clamp(self.logit_scale, max=4.6052).exp()
        rpb = self.table[self.rel_index.reshape(-1)].view(win * win, win * win, nh).permute(2, 0, 1)
        attn = attn + 16 * torch.sigmoid(rpb).unsqueeze(0)
        nw = self.blocked.shape[0]
        attn = attn.view(b, nw, nh, win * win, win * win)
        attn = attn.masked_fill(self.blocked[None, :, None], float("-inf"))
        attn = attn.softmax(-1).view(-1, nh, win * win, win * win)
        y = self.proj((attn @ v).transpose(1, 2).reshape(-1, win * win, c))
        y = y.view(b, h // win, w // win, win, win, c).permute(0, 1, 3, 2, 4, 5).reshape(b, h, w, c)
        y = torch.roll(y, (self.shift, self.shift), dims=(1, 2))
        return x + self.norm(y)


def get_inputs():
    return [torch.randn(B, IMG, IMG, C)]


def get_init_inputs():
    return [C, HEADS, IMG, WIN, SHIFT]
