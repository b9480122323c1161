import math

import torch
import torch.nn as nn


class Model(nn.Module):
    """Hybrid input-output phase retrieval with complex tensors: polar and angle, shifted 2-D
    transforms, support masks, then row-wise phase unwrapping, a Hermitian spectrum, a
    spectral derivative, and complex gain fits (also over no rows at all)."""

    def __init__(self, h, w, rounds, feedback):
        super().__init__()
        self.rounds = rounds
        self.feedback = nn.Parameter(torch.tensor(feedback))
        y, x = torch.meshgrid(torch.arange(h) - h // 2, torch.arange(w) - w // 2, indexing="ij")
        self.register_buffer("support", (y.abs() < h // 4) & (x.abs() < w // 4))
        self.register_buffer("lens", torch.stack([torch.cos(0.01 * (x * x + y * y)), torch.sin(0.01 * (x * x + y * y))], -1))

    def forward(self, magnitude, phase, iq):
        lens = torch.view_as_complex(self.lens)
        start = torch.polar(magnitude, phase)
        g = torch.fft.fftshift(torch.fft.ifft2(torch.fft.ifftshift(start, dim=(-2, -1))), dim=(-2, -1))
        errors = []
        for _ in range(self.rounds):
            spectrum = torch.fft.fft2(g * lens)
            size = spectrum.abs().clamp_min(1e-6)
            errors.append(((size - magnitude) ** 2).mean((1, 2)).sqrt())
            fixed = torch.fft.ifft2(magnitude * (spectrum / size)) * lens.conj()
            inside = self.support & (fixed.real.detach() > -0.02)
            g = torch.where(inside, fixed, g - self.feedback * fixed)
        turned = g * torch.exp(torch.complex(torch.zeros(()), torch.tensor(0.3)).to(g.dtype))
        angle = torch.angle(g + 0.02)
        jump = torch.diff(angle.detach(), dim=-1)
        wraps = torch.round(jump / (2 * math.pi))
        zeros = wraps.new_zeros(*wraps.shape[:-1], 1)
        unwrapped = angle - 2 * math.pi * torch.cat([zeros, wraps.cumsum(-1)], -1)

        rows = torch.view_as_complex(iq)  # b n, complex
        n = rows.shape[-1]
        power = torch.fft.rfft(rows.real) * torch.fft.rfft(rows.imag).conj()
        corr = torch.fft.irfft(power, n=n)
        herm = torch.fft.hfft(rows[:, : n // 2 + 1], n=n, norm="ortho")
        k = torch.fft.fftfreq(n, 1.0 / n).to(iq.dtype)
        slope = torch.fft.ifft(torch.fft.fft(rows) * (1j * k)) * (2 * math.pi / n)
        ref = torch.roll(rows, 1, 0)
        gain = (ref.conj() * rows).sum(-1) / ref.abs().square().sum(-1)
        none = 0.5 * torch.view_as_real(rows[:0] * gain[:0, None])
        flat = torch.view_as_real(turned)
        pairs = torch.stack([flat[..., 0] * flat.flip(-1)[..., 0], torch.real(turned * turned.mH.mT)], 1)
        return torch.stack([g.real, g.imag], 1), torch.stack(errors, 1), unwrapped, corr, herm, slope, gain, none, pairs


def get_inputs():
    b, h, w = 2, 45, 63
    truth = torch.zeros(b, h, w)
    truth[:, h // 2 - 8 : h // 2 + 9, w // 2 - 11 : w // 2 + 10] = torch.rand(b, 17, 21)
    magnitude = torch.fft.fft2(truth).abs() + 0.05
    return [magnitude, 0.5 * torch.randn(b, h, w), torch.randn(7, 255, 2)]


def get_init_inputs():
    return [45, 63, 6, 0.8]
