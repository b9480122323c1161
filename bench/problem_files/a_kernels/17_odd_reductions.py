import torch
import torch.nn as nn


class Model(nn.Module):
    """Reductions of reductions over first, middle and several dims of odd extents, met by broadcasting."""

    def __init__(self, a, b, c):
        super().__init__()
        self.p = nn.Parameter(torch.randn(a, 1, 1, b, 1))
        self.q = nn.Parameter(torch.randn(1, 3, 1, 1, c) * 0.3)

    def forward(self, x, s, t):
        y = x * s + self.q
        m0 = y.mean(0, keepdim=True)
        v13 = y.var((1, 3), keepdim=True, unbiased=False)
        l03 = torch.logsumexp(y, (0, 3), keepdim=True)
        hi, lo = y.amax((1, 2), keepdim=True), y.amin(2, keepdim=True)
        z = (y - m0) * torch.rsqrt(v13 + 1e-3) + self.p * torch.tanh(l03)
        r1 = (hi - lo).amin(1).norm(dim=0)
        r2 = z.std(4, keepdim=True).amax(3, keepdim=True).mean((0, 2), keepdim=True)
        z = z / (r2 + 0.1)
        g = z.view(z.shape[0], 3, -1, 1, *z.shape[3:]).sum(3)
        w = torch.softmax(g.mean((1, 4)), dim=0)
        pooled = torch.einsum("abde,ac->bcde", g.mean(2), w.mean(2)[:, :13])
        c01 = z.flatten(0, 1).cumsum(0)[1::2].abs().mean(0)
        d = torch.where(t, z, z.flip(3)).sum((0, 1, 4)) / (t.sum((0, 3)) + 1)
        am = z.amax(4).argmax(2)
        cnt = (z > m0).sum((0, 4)) - (z < l03 / 2).sum((0, 4))
        fin = (z.prod(1) * 0.1).clamp(-2, 2) + 0.03 * r1.unsqueeze(0)[:, :1] + c01
        return fin, pooled, d, am, cnt.amax(1)


def get_inputs():
    t = torch.rand(3, 211, 1, 19) < 0.6
    return [torch.randn(17, 3, 211, 9, 19), torch.rand(17, 1, 211, 1, 1) + 0.5, t]


def get_init_inputs():
    return [17, 9, 19]
