import torch
import torch.nn as nn


class Model(nn.Module):
    """Winners over a middle dim by equality with the max, straight-through, runner-up gaps, LWTA pairs."""

    def __init__(self, k, g, e):
        super().__init__()
        self.code = nn.Parameter(torch.randn(g, k, e))
        self.lt = nn.Parameter(torch.tensor(-0.2))
        self.g = g

    def forward(self, x, u):
        b, k, t, g = x.shape
        u = u.clamp(1e-5, 1 - 1e-5)
        n = (x - torch.log(-torch.log(u))) / self.lt.exp()
        p = torch.softmax(n, 1)
        top = p.amax(1, keepdim=True)
        hard = (p == top).to(x.dtype)
        st = hard - p.detach() + p
        z = torch.einsum("bktg,gke->btge", st, self.code)
        ix = n.argmax(1)
        look = self.code[torch.arange(g, device=x.device), ix]
        second = n.masked_fill(n == n.amax(1, keepdim=True), float("-inf"))
        gap = n.amax(1) - second.amax(1)
        ix2 = second.argmax(1)
        alt = self.code[torch.arange(g, device=x.device), ix2]
        pair = torch.stack([look, alt], -1)
        lwta = (pair * (pair == pair.amax(-1, keepdim=True))).sum(-1)
        z = torch.where((gap < 0.5).unsqueeze(-1), 0.5 * (z + lwta), z)
        use = hard.mean((0, 2)).t()
        avg = p.mean((0, 2)).t()
        bal = k * (use * avg).sum(-1)
        ppl = torch.exp(-(avg * torch.log(avg + 1e-7)).sum(-1))
        chg = (ix[:, 1:] != ix[:, :-1]).to(x.dtype).mean((0, 1))
        return z, bal + chg, ppl, gap, ix - ix2


def get_inputs():
    return [torch.randn(13, 61, 331, 3), torch.rand(13, 61, 331, 3)]


def get_init_inputs():
    return [61, 3, 17]
