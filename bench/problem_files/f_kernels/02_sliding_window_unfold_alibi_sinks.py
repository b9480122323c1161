import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, dim, heads, window):
        super().__init__()
        self.heads, self.window = heads, window
        self.qkv = nn.Linear(dim, 3 * dim)
        self.q_scale = nn.Parameter(torch.rand(dim // heads) + 0.5)
        self.k_scale = nn.Parameter(torch.rand(dim // heads) + 0.5)
        self.sink = nn.Parameter(torch.randn(heads))
        self.gate = nn.Linear(dim, heads)
        self.out = nn.Linear(dim, dim)
        slopes = 2.0 ** (-8.0 * torch.arange(1, heads + 1) / heads)
        self.register_buffer("slopes", slopes)

    def forward(self, x, segment):
        b, t, d = x.shape
        w, h = self.window, self.heads
        q, k, v = self.qkv(x).view(b, t, 3, h, d // h).permute(2, 0, 3, 1, 4)
        q = F.normalize(q, dim=-1) * self.q_scale * 6.0
        k = F.normalize(k, dim=-1) * self.k_scale
        kw = F.pad(k, (0, 0, w - 1, 0)).unfold(2, w, 1)
        vw = F.pad(v, (0, 0, w - 1, 0)).unfold(2, w, 1)
        s = torch.einsum("bhtd,bhtdw->bhtw", q, kw)
        back = torch.arange(w - 1, -1, -1, device=x.device)
        s = s - self.slopes[:, None, None] * back
        seg = F.pad(segment, (w - 1, 0), value=-1).unfold(1, w, 1)
        same = seg == segment.unsqueeze(-1)
        s = s.masked_fill(~same.unsqueeze(1), torch.finfo(s.dtype).min)
        sink = self.sink.view(1, h, 1, 1).expand(b, h, t, 1)
        p = torch.cat((sink, s), dim=-1).softmax(-1)[..., 1:]
        o = torch.einsum("bhtw,bhtdw->bthd", p, vw)
        o = o * torch.sigmoid(self.gate(x)).unsqueeze(-1)
        return self.out(o.reshape(b, t, d)), p.amax(-1).mean(1)


def get_inputs():
    x = torch.randn(2, 96, 509).transpose(1, 2)
    segment = (torch.rand(2, 509) < 0.02).long().cumsum(1)
    return [x, segment]


def get_init_inputs():
    return [96, 4, 29]
