import torch
import torch.nn as nn
import torch.nn.functional as F


def scatter_softmax(e, dst, n):
    idx = dst.unsqueeze(-1).expand_as(e)
    mx = torch.full((n, e.size(1)), float("-inf"), dtype=e.dtype, device=e.device)
    mx = mx.scatter_reduce(0, idx, e, reduce="amax", include_self=True)
    ex = torch.exp(e - mx.gather(0, idx))
    den = torch.zeros(n, e.size(1), dtype=e.dtype, device=e.device).scatter_add(0, idx, ex)
    return ex / (den.gather(0, idx) + 1e-16)


class Model(nn.Module):
    """GATv2 layer with edge features, followed by a PNA layer (mean/max/min/std, degree scalers)."""

    def __init__(self, din, edim, heads, hd, dout, avg_log_deg):
        super().__init__()
        self.h, self.hd, self.avg = heads, hd, avg_log_deg
        self.ws = nn.Linear(din, heads * hd)
        self.wd = nn.Linear(din, heads * hd)
        self.we = nn.Linear(edim, heads * hd, bias=False)
        self.att = nn.Parameter(torch.randn(heads, hd) * 0.2)
        d = heads * hd
        self.pre = nn.Linear(2 * d, d)
        self.post = nn.Linear(d + 12 * d, dout)

    def forward(self, x, src, dst, ea):
        n = x.size(0)
        s, d = self.ws(x), self.wd(x)
        m = F.leaky_relu(s[src] + d[dst] + self.we(ea), 0.2).view(-1, self.h, self.hd)
        alpha = scatter_softmax((m * self.att).sum(-1), dst, n)
        msg = (s[src].view(-1, self.h, self.hd) * alpha.unsqueeze(-1)).flatten(1)
        idx = dst[:, None].expand_as(msg)
        h = F.elu(torch.zeros_like(s).scatter_add(0, idx, msg))
        msg = self.pre(torch.cat([h[dst], h[src]], -1))
        zero = torch.zeros_like(h)
        deg = torch.bincount(dst, minlength=n).to(x.dtype).clamp(min=1).unsqueeze(-1)
        mean = zero.scatter_add(0, idx, msg) / deg
        sq = zero.scatter_add(0, idx, msg * msg) / deg
        std = torch.sqrt(F.relu(sq - mean * mean) + 1e-5)
        mx = zero.scatter_reduce(0, idx, msg, "amax", include_self=False)
        mn = zero.scatter_reduce(0, idx, msg, "amin", include_self=False)
        agg = torch.cat([mean, mx, mn, std], -1)
        amp = torch.log(deg + 1) / self.avg
        agg = torch.cat([agg, agg * amp, agg / amp], -1)
        return self.post(torch.cat([h, agg], -1))


def get_inputs():
    n, e = 300, 1350
    return [torch.randn(n, 19), torch.randint(0, n, (e,)), torch.randint(0, n, (e,)), torch.randn(e, 6)]


def get_init_inputs():
    return [19, 6, 4, 9, 27, 1.6]
