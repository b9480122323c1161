import torch
import torch.nn as nn


class Model(nn.Module):
    """Moments over several dim sets at once: var/std, skewness, kurtosis, covariance and a whitening-like rescale."""

    def __init__(self, c):
        super().__init__()
        self.g = nn.Parameter(torch.rand(c, 1, 1) + 0.5)
        self.b = nn.Parameter(torch.randn(c, 1, 1) + 20.0)      # large mean: naive E[x^2]-E[x]^2 loses digits

    def forward(self, x):
        y = x * self.g + self.b
        v_hw, m_hw = torch.var_mean(y, dim=(2, 3), keepdim=True)
        v_bc = y.var(dim=(0, 2), correction=0, keepdim=True)
        s_all = y.std()
        c = y - m_hw
        sd = torch.sqrt(v_hw + 1e-5)
        z = c / sd
        skew = z.pow(3).mean(dim=(2, 3))
        kurt = z.pow(4).mean(dim=(2, 3)) - 3.0
        flat = y.mean(dim=3).transpose(0, 1).flatten(1)          # (C, B*H)
        cov = torch.cov(flat)
        dg = cov.diagonal()
        corr = cov / torch.sqrt(dg[:, None] * dg[None, :] + 1e-6)
        off = corr - torch.diag_embed(corr.diagonal())
        w = torch.softmax(off.square().sum(1), dim=0)
        out = z * torch.rsqrt(v_bc + 1.0) * w[:, None, None] + skew[..., None, None] * 0.1
        dev = (y - y.mean(dim=(1, 3), keepdim=True)).abs().mean(dim=(1, 3))
        return out, kurt / s_all, off, dev, v_hw.flatten(1).std(dim=0, correction=2)


def get_inputs():
    return [torch.randn(9, 13, 31, 43)]


def get_init_inputs():
    return [13]
