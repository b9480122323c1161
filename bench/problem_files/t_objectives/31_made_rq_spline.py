import math
import torch
import torch.nn as nn
import torch.nn.functional as F


class MaskedLinear(nn.Linear):
    def __init__(self, i, o, mask):
        super().__init__(i, o)
        self.register_buffer("mask", mask)

    def forward(self, x):
        return F.linear(x, self.mask * self.weight, self.bias)


class MADE(nn.Module):
    def __init__(self, d, hidden, mult):
        super().__init__()
        deg_in = torch.arange(1, d + 1)
        deg_h = torch.arange(hidden) % (d - 1) + 1
        deg_out = deg_in.repeat_interleave(mult)
        self.l1 = MaskedLinear(d, hidden, (deg_h[:, None] >= deg_in[None]).float())
        self.l2 = MaskedLinear(hidden, hidden, (deg_h[:, None] >= deg_h[None]).float())
        self.l3 = MaskedLinear(hidden, d * mult, (deg_out[:, None] > deg_h[None]).float())
        self.d, self.mult = d, mult

    def forward(self, x):
        h = F.relu(self.l1(x))
        h = h + F.relu(self.l2(h))
        return self.l3(h).view(-1, self.d, self.mult)


def rqs(x, uw, uh, ud, bound=3.0, min_w=1e-2, min_h=1e-2, min_d=1e-2):
    K = uw.shape[-1]
    inside = (x >= -bound) & (x <= bound)
    xc = x.clamp(-bound, bound)
    w = min_w + (1 - min_w * K) * F.softmax(uw, -1)
    h = min_h + (1 - min_h * K) * F.softmax(uh, -1)
    cw = F.pad(torch.cumsum(w, -1), (1, 0)) * 2 * bound - bound
    ch = F.pad(torch.cumsum(h, -1), (1, 0)) * 2 * bound - bound
    w = cw[..., 1:] - cw[..., :-1]
    h = ch[..., 1:] - ch[..., :-1]
    d = min_d + F.softplus(F.pad(ud, (1, 1), value=math.log(math.exp(1 - min_d) - 1)))
    idx = ((xc[..., None] >= cw).sum(-1, keepdim=True) - 1).clamp(0, K - 1)

    def pick(t):
        return t.gather(-1, idx)[..., 0]

    x0, bw, y0, bh = pick(cw), pick(w), pick(ch), pick(h)
    d0, d1 = pick(d), pick(d[..., 1:])
    delta = bh / bw
    theta = (xc - x0) / bw
    t1 = theta * (1 - theta)
    den = delta + (d0 + d1 - 2 * delta) * t1
    y = y0 + bh * (delta * theta.pow(2) + d0 * t1) / den
    num = delta.pow(2) * (d1 * theta.pow(2) + 2 * delta * t1 + d0 * (1 - theta).pow(2))
    ld = torch.log(num) - 2 * torch.log(den)
    return torch.where(inside, y, x), torch.where(inside, ld, torch.zeros_like(ld))


class Model(nn.Module):
    """Neural spline flow with MADE conditioners and reversed ordering between layers; returns NLL."""

    def __init__(self, d, hidden, bins, layers):
        super().__init__()
        self.bins = bins
        self.nets = nn.ModuleList([MADE(d, hidden, 3 * bins - 1) for _ in range(layers)])

    def forward(self, x):
        logdet = torch.zeros(x.shape[0], device=x.device)
        for net in self.nets:
            uw, uh, ud = net(x).split([self.bins, self.bins, self.bins - 1], dim=-1)
            x, ld = rqs(x, uw, uh, ud)
            logdet = logdet + ld.sum(-1)
            x = x.flip(-1)
        base = -0.5 * (x ** 2 + math.log(2 * math.pi)).sum(-1)
        return -(base + logdet).mean()


def get_inputs():
    return [torch.randn(140, 13) * 1.3]


def get_init_inputs():
    return [13, 90, 8, 3]
