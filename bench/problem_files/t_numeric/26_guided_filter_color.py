import torch
import torch.nn as nn
import torch.nn.functional as F


def box_sum(x, r):
    """Sum over a (2r+1)^2 window by two running sums; x (..., H, W)."""
    for dim in (-2, -1):
        n = x.shape[dim]
        c = torch.cumsum(x, dim=dim)
        c = torch.cat((torch.zeros_like(c.narrow(dim, 0, 1)), c), dim=dim)
        i = torch.arange(n, device=x.device)
        hi = (i + r + 1).clamp(max=n)
        lo = (i - r).clamp(min=0)
        x = c.index_select(dim, hi) - c.index_select(dim, lo)
    return x


class Model(nn.Module):
    """Guided filter with a colour guide (3x3 covariance solved in closed form)."""

    def __init__(self, radius, eps):
        super().__init__()
        self.r, self.eps = radius, eps

    def forward(self, guide, src):
        # guide (B, 3, H, W), src (B, H, W)
        guide_c = guide - 0.5
        n = box_sum(torch.ones_like(src[:1]), self.r)
        mean = lambda t: box_sum(t, self.r) / n
        mI = mean(guide_c)
        mp = mean(src)
        cov = mean(guide_c * src.unsqueeze(1)) - mI * mp.unsqueeze(1)
        r, g, b = guide_c.unbind(1)
        mr, mg, mb = mI.unbind(1)
        e = self.eps
        rr = mean(r * r) - mr * mr + e
        gg = mean(g * g) - mg * mg + e
        bb = mean(b * b) - mb * mb + e
        rg = mean(r * g) - mr * mg
        rb = mean(r * b) - mr * mb
        gb = mean(g * b) - mg * mb
        irr, irg, irb = gg * bb - gb * gb, gb * rb - rg * bb, rg * gb - gg * rb
        igg, igb, ibb = rr * bb - rb * rb, rb * rg - rr * gb, rr * gg - rg * rg
        det = irr * rr + irg * rg + irb * rb
        cr, cg, cb = cov.unbind(1)
        a = torch.stack((irr * cr + irg * cg + irb * cb,
                         irg * cr + igg * cg + igb * cb,
                         irb * cr + igb * cg + ibb * cb), dim=1) / det.unsqueeze(1)
        bias = mp - (a * mI).sum(1)
        return (mean(a) * guide_c).sum(1) + mean(bias)


def get_inputs():
    guide = torch.rand(1, 3, 94, 121)
    return [guide, (guide.mean(1) + 0.2 * torch.randn(1, 94, 121))]


def get_init_inputs():
    return [4, 0.01]
