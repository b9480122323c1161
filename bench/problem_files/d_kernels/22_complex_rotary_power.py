import torch
import torch.nn as nn


class Model(nn.Module):
    """Rotary mixing through view_as_complex and polar, a conjugate correlation with a shifted copy, then real/imag/abs reductions."""

    def __init__(self, pairs, lag):
        super().__init__()
        self.freq = nn.Parameter(torch.logspace(0, -3, pairs))
        self.mag = nn.Parameter(torch.ones(pairs))
        self.lag = lag

    def forward(self, x):
        z = torch.view_as_complex(x.unflatten(-1, (-1, 2)))  # interleaved pairs
        t = torch.arange(x.shape[1], device=x.device, dtype=x.dtype)
        rot = torch.polar(self.mag.abs().expand(t.shape[0], -1), torch.outer(t, self.freq))
        y = z * rot
        corr = y * torch.roll(y, self.lag, dims=1).conj()
        coh = corr.mean(dim=1, keepdim=True)  # complex
        power = torch.view_as_real(y).square().sum(dim=-1)
        out = torch.view_as_real(y * coh).flatten(-2)
        scale = torch.rsqrt(power.mean(dim=2, keepdim=True) + 1e-5)
        return out * scale + coh.imag.sum(dim=-1, keepdim=True) - corr.abs().amax(dim=2, keepdim=True) * 0.1


def get_inputs():
    return [torch.randn(7, 1237, 106)]


def get_init_inputs():
    return [53, 3]
