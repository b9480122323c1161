import math
import torch
import torch.nn as nn
import torch.nn.functional as F


class ResBlock(nn.Module):
    def __init__(self, i, o, t, groups):
        super().__init__()
        self.n1 = nn.GroupNorm(groups, i)
        self.c1 = nn.Conv2d(i, o, 3, padding=1)
        self.emb = nn.Linear(t, 2 * o)
        self.n2 = nn.GroupNorm(groups, o, affine=False)
        self.c2 = nn.Conv2d(o, o, 3, padding=1)
        self.skip = nn.Conv2d(i, o, 1) if i != o else nn.Identity()

    def forward(self, x, t):
        h = self.c1(F.silu(self.n1(x)))
        scale, shift = self.emb(F.silu(t))[:, :, None, None].chunk(2, dim=1)
        h = self.n2(h) * (1 + scale) + shift
        return self.skip(x) + self.c2(F.silu(h))


class Model(nn.Module):
    """Timestep-conditioned residual blocks with scale/shift norm around a product vector quantiser."""

    def __init__(self, ch, mid, tdim, codes, heads):
        super().__init__()
        self.tdim, self.heads = tdim, heads
        self.t1, self.t2 = nn.Linear(tdim, 2 * tdim), nn.Linear(2 * tdim, tdim)
        self.enc = ResBlock(ch, mid, tdim, 4)
        self.dec = ResBlock(mid, ch, tdim, 4)
        self.codebook = nn.Parameter(torch.randn(heads, codes, mid // heads))

    def time(self, t):
        half = self.tdim // 2
        f = torch.exp(-math.log(10000.0) * torch.arange(half, device=t.device) / half)
        a = t[:, None].float() * f[None]
        return self.t2(F.silu(self.t1(torch.cat([a.cos(), a.sin()], -1))))

    def quantise(self, z):
        b, c, h, w = z.shape
        f = z.view(b, self.heads, c // self.heads, h * w).permute(1, 0, 3, 2).reshape(self.heads, -1, c // self.heads)
        d = (
            f.pow(2).sum(-1, keepdim=True)
            - 2 * torch.bmm(f, self.codebook.transpose(1, 2))
            + self.codebook.pow(2).sum(-1).unsqueeze(1)
        )
        idx = d.argmin(-1)
        q = torch.gather(self.codebook, 1, idx.unsqueeze(-1).expand(-1, -1, f.size(-1)))
        loss = F.mse_loss(q, f.detach()) + 0.25 * F.mse_loss(f, q.detach())
        q = f + (q - f).detach()
        q = q.view(self.heads, b, h * w, -1).permute(1, 0, 3, 2).reshape(b, c, h, w)
        return q, idx, loss

    def forward(self, x, t):
        e = self.time(t)
        q, idx, loss = self.quantise(self.enc(x, e))
        return self.dec(q, e), loss


def get_inputs():
    return [torch.randn(3, 28, 18, 18), torch.tensor([3, 250, 981])]


def get_init_inputs():
    return [28, 40, 34, 97, 4]
