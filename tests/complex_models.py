"""Models of complex numbers, the shapes of their inputs, and what is asked of them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

import torchweld
from torchweld.exact.verify import verify

C64 = torch.complex64


class Spectral(nn.Module):
    """Some modes of an image, mixed by complex weights."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(2, 6, 6, 4, 4, dtype=C64) / 6)
        self.beside = nn.Conv2d(6, 6, 1)

    def forward(self, x):
        modes = torch.fft.rfft2(x)
        kept = torch.zeros_like(modes)
        for w, rows in zip(self.w, (slice(0, 4), slice(-4, None))):
            part = torch.einsum("bixy,ioxy->boxy", modes[:, :, rows, :4], w)
            kept[:, :, rows, :4] = part
        return F.gelu(torch.fft.irfft2(kept, s=x.shape[-2:]) + self.beside(x))


class Denoiser(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mask = nn.Linear(33, 33)
        self.register_buffer("window", torch.hann_window(64))

    def forward(self, x):
        frames = torch.stft(x, 64, 16, window=self.window, return_complex=True)
        mask = torch.sigmoid(self.mask(frames.abs().log1p().mT)).mT
        return torch.istft(frames * mask, 64, 16, window=self.window), frames.angle()


class Recurrence(nn.Module):
    """Of diagonal complex states."""

    def __init__(self) -> None:
        super().__init__()
        self.decay, self.turn = nn.Parameter(torch.rand(16)), nn.Parameter(torch.rand(16) * 3)
        self.inner = nn.Parameter(torch.randn(16, 8, dtype=C64) / 4)
        self.outer = nn.Parameter(torch.randn(8, 16, dtype=C64) / 4)

    def forward(self, u):
        step = torch.exp(torch.complex(-torch.exp(self.decay), self.turn))
        state, made = torch.zeros(u.shape[0], 16, dtype=C64, device=u.device), []
        for t in range(u.shape[1]):
            state = step * state + u[:, t].to(C64) @ self.inner.T
            made.append((state @ self.outer.T).real)
        return torch.stack(made, 1)


class Rotary(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q = nn.Linear(32, 64)
        angles = torch.outer(torch.arange(12.0), torch.rand(8))
        self.register_buffer("turns", torch.polar(torch.ones(12, 8), angles))

    def forward(self, x):
        q = self.q(x).view(*x.shape[:2], 4, 8, 2)
        turned = torch.view_as_complex(q) * self.turns[None, :, None]
        return torch.view_as_real(turned).flatten(3).tanh()


class Circuit(nn.Module):
    """Of quantum gates on three bits."""

    def __init__(self) -> None:
        super().__init__()
        self.angles = nn.Parameter(torch.randn(3))

    def forward(self, x):
        state = torch.complex(x, torch.zeros_like(x))
        state = state / state.abs().pow(2).sum(-1, keepdim=True).sqrt()
        for angle in self.angles:
            cos, sin = torch.cos(angle), torch.sin(angle)
            rows = torch.stack([cos + 0j, -1j * sin]), torch.stack([-1j * sin, cos + 0j])
            state = torch.einsum("ab,nbc->nac", torch.stack(rows), state.reshape(-1, 2, 4))
            state = state.reshape(-1, 8) * torch.exp(1j * angle)
        return state.abs() ** 2, (state.conj() * state.roll(1, 1)).sum(-1).real


class Correlation(nn.Module):
    """Of phases, and a complex result."""

    def forward(self, x, y):
        a, b = torch.fft.fft2(x), torch.fft.fft2(y)
        ratio = a * b.conj()
        ratio = ratio / (ratio.abs() + 1e-3)
        return torch.fft.ifft2(ratio).real, torch.fft.fftshift(a.abs()).log1p(), ratio.mT * 2


MODELS = {
    "spectral": (Spectral, [(2, 6, 16, 18)]),
    "denoiser": (Denoiser, [(2, 1024)]),
    "recurrence": (Recurrence, [(3, 10, 8)]),
    "rotary": (Rotary, [(2, 12, 32)]),
    "circuit": (Circuit, [(5, 8)]),
    "correlation": (Correlation, [(2, 12, 15), (2, 12, 15)]),
}
ON_COMPLEX = tuple(f"aten.{n}." for n in ("mul", "exp", "abs", "add", "div", "_conj", "bmm"))


def check(name: str, train: bool, device: str) -> None:
    """As exact as eager, and no call of the library but transforms and products."""
    torch.manual_seed(0)
    make, shapes = MODELS[name]
    model, inputs = make().to(device), tuple(torch.randn(s, device=device) for s in shapes)
    fused = torchweld.fuse(model)
    report = verify(model, fused, inputs, train=train)
    assert report.ok, str(report)
    nodes = [n for r in torchweld.records(fused) for n in r.graph.nodes]
    assert not [n for n in nodes if getattr(n, "target", "").startswith(ON_COMPLEX)]
