import torch
import torch.nn as nn


class Model(nn.Module):
    """Repetition penalty, nucleus and min-p cuts on one sort, finished beams, top-k over beams by words."""

    def __init__(self, d, v, p):
        super().__init__()
        self.head = nn.Parameter(torch.randn(v, d) * 0.35)
        self.pen = nn.Parameter(torch.tensor(1.3))
        self.p = p

    def forward(self, h, score, prev, done, length):
        b, k, d = h.shape
        v = self.head.shape[0]
        lg = h @ self.head.t()
        g = lg.gather(-1, prev)
        lg = lg.scatter(-1, prev, torch.where(g < 0, g * self.pen, g / self.pen))
        pr = torch.softmax(lg, -1)
        ps, ix = pr.detach().sort(-1, descending=True)
        late = ps.cumsum(-1) - ps > self.p
        drop = torch.zeros_like(late).scatter(-1, ix, late)
        drop = drop | (pr < 0.01 * pr.amax(-1, keepdim=True))
        lp = torch.log_softmax(lg.masked_fill(drop, float("-inf")), -1)
        ent = -(lp.exp() * torch.where(drop, 0.0, lp)).sum(-1)
        only = torch.where(torch.arange(v, device=h.device) == 2, 0.0, float("-inf")).to(h.dtype)
        lp = torch.where(done.unsqueeze(-1), only, lp)
        norm = ((5.0 + length) / 6.0) ** 0.7
        tot = (score.unsqueeze(-1) + lp) / norm.unsqueeze(-1)
        top, flat = tot.reshape(b, k * v).topk(k, dim=-1)
        par, tok = torch.div(flat, v, rounding_mode="floor"), flat % v
        h2 = h.gather(1, par.unsqueeze(-1).expand(-1, -1, d)) + torch.tanh(self.head[tok])
        fin = done.gather(1, par) | (tok == 2)
        len2 = length.gather(1, par) + (~fin).long()
        return top, h2, ent, par, tok, fin, len2, (~drop).sum(-1)


def get_inputs():
    b, k, d, v = 24, 5, 48, 10007
    prev = torch.rand(b, k, v).argsort(-1)[..., :61]
    done, length = torch.rand(b, k) < 0.2, torch.randint(1, 40, (b, k))
    return [torch.randn(b, k, d), torch.randn(b, k), prev, done, length]


def get_init_inputs():
    return [48, 10007, 0.9]
