import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """Hand-made LSTM with layer norm, coupled gates, zoneout by a mask, ragged lengths and an attention read of its past."""

    def __init__(self, d, h):
        super().__init__()
        self.wx = nn.Linear(d, 4 * h, bias=False)
        self.wh = nn.Parameter(torch.randn(h, 4 * h) / h ** 0.5)
        self.bias = nn.Parameter(torch.zeros(4 * h))
        self.peep = nn.Parameter(torch.randn(3, h) * 0.1)
        self.ln = nn.LayerNorm(h)
        self.h0 = nn.Parameter(torch.zeros(1, h))

    def cell(self, xt, h, c):
        g = torch.addmm(xt + self.bias, h, self.wh, beta=1.0, alpha=0.7)
        i, f, o, u = g.tensor_split(4, dim=1)
        i = torch.sigmoid(i + self.peep[0] * c)
        f = torch.sigmoid(f + self.peep[1] * c + 1)
        c = torch.lerp(torch.tanh(u), c, f) * (1 - 0.1 * i)
        o = torch.sigmoid(o + self.peep[2] * c)
        return o * torch.tanh(self.ln(c)), c

    def forward(self, x, lengths, state=None):
        b, t, _ = x.shape
        gx = self.wx(x).transpose(0, 1)
        if state is None:
            h = self.h0.expand(b, -1)
            c = torch.zeros_like(h)
        else:
            h, c = state
        live = torch.arange(t, device=x.device)[None, :] < lengths[:, None]
        outs, mem = [], []
        for s in range(t):
            if mem and s % 3 == 0:
                past = torch.stack(mem, 1)
                sc = (past * h[:, None]).sum(-1) / h.shape[1] ** 0.5
                sc = sc.masked_fill(~live[:, : past.shape[1]], torch.finfo(sc.dtype).min)
                h = h + 0.5 * torch.bmm(sc.softmax(-1)[:, None], past)[:, 0]
            hn, cn = self.cell(gx[s], h, c)
            keep = live[:, s, None]
            h = torch.where(keep, hn, h)
            c = torch.where(keep, cn, c)
            mem.append(h)
            outs.append(h * keep)
        y = torch.stack(outs, dim=1)
        last = y.gather(1, (lengths - 1).clamp(min=0)[:, None, None].expand(-1, 1, y.shape[2])).squeeze(1)
        pooled = y.sum(1) / lengths[:, None].clamp(min=1)
        return {"y": y, "state": (h, c), "last": last, "pooled": F.normalize(pooled + 1e-2, dim=-1), "aux": None}


def get_inputs():
    lengths = torch.randint(0, 18, (13,))
    return [torch.randn(13, 17, 11), lengths]


def get_init_inputs():
    return [11, 23]
