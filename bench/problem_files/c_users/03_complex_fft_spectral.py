import math
import torch
import torch.nn as nn


class Model(nn.Module):
    """Spectral solver: complex multipliers, dispersion propagation, spectrograms and complex algebra."""

    def __init__(self, n, modes):
        super().__init__()
        self.modes = modes
        self.weight = nn.Parameter(torch.randn(3, 5, modes, 2) / 8)
        self.register_buffer("window", torch.hann_window(32))

    def forward(self, u, phase):
        n = u.shape[-1]
        spec = torch.fft.rfft(u, norm="ortho")
        k = torch.arange(spec.shape[-1], device=u.device, dtype=u.dtype)
        w = torch.view_as_complex(self.weight.contiguous())
        low = torch.einsum("bik,iok->bok", spec[..., : self.modes], w)
        full = torch.zeros(u.shape[0], w.shape[1], spec.shape[-1], dtype=spec.dtype, device=u.device)
        full[..., : self.modes] = low
        mixed = torch.fft.irfft(full, n=n, norm="ortho")

        prop = torch.polar(torch.exp(-0.002 * k), 0.05 * k * k / n)
        moved = torch.fft.irfft(spec * prop, n=n, norm="ortho")
        deriv = torch.fft.irfft(spec * (2j * math.pi / n) * k, n=n, norm="ortho")

        frames = u.unfold(-1, 32, 16) * self.window
        sg = torch.fft.fft(frames, n=40)
        sg = torch.fft.fftshift(sg, dim=-1)
        logp = (sg.real.square() + sg.imag.square()).add(1e-2).log10()

        z = torch.complex(phase.cos(), phase.sin()) * (1 + 0.5j)
        zz = (z * z.conj()).real + (z / (z + 3)).imag + (z ** 2).abs()
        circ = torch.view_as_real(z.roll(3, -1) - z.flip(-1)).sum(-1)
        corr = torch.fft.ifft(torch.fft.fft(z) * torch.fft.fft(z).conj().resolve_conj())
        return mixed, moved + deriv, logp, zz, circ, corr


def get_inputs():
    return [torch.randn(31, 3, 257), torch.rand(59, 101) * 3]


def get_init_inputs():
    return [257, 17]
