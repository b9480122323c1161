import torch
import torch.nn as nn


def laplacian(u, a, hh):
    """Variable coefficient a at cell centres; zero boundary around."""
    ay = 0.5 * (a[:, 1:] + a[:, :-1])
    ax = 0.5 * (a[..., 1:] + a[..., :-1])
    p = nn.functional.pad(u, (1, 1, 1, 1))
    centre = p[:, 1:-1, 1:-1]
    flux = ay[:, 1:, 1:-1] * (p[:, 2:, 1:-1] - centre) - ay[:, :-1, 1:-1] * (centre - p[:, :-2, 1:-1])
    flux = flux + ax[:, 1:-1, 1:] * (p[:, 1:-1, 2:] - centre) - ax[:, 1:-1, :-1] * (centre - p[:, 1:-1, :-2])
    return flux / hh


class Model(nn.Module):
    """Geometric multigrid V-cycles in float64 for -div(a grad u) = f: red-black
    relaxation written into strided views, full weighting, bilinear prolongation."""

    def __init__(self, cycles, sweeps):
        super().__init__()
        self.cycles = cycles
        self.sweeps = sweeps
        self.omega = nn.Parameter(torch.tensor(1.05, dtype=torch.float64))

    def relax(self, u, a, f, hh):
        ay = 0.5 * (a[:, 1:] + a[:, :-1])
        ax = 0.5 * (a[..., 1:] + a[..., :-1])
        n, s = ay[:, :-1, 1:-1], ay[:, 1:, 1:-1]
        w, e = ax[:, 1:-1, :-1], ax[:, 1:-1, 1:]
        diag = n + s + w + e
        for _ in range(self.sweeps):
            for colour in (0, 1):
                p = nn.functional.pad(u, (1, 1, 1, 1))
                full = (n * p[:, :-2, 1:-1] + s * p[:, 2:, 1:-1] + w * p[:, 1:-1, :-2]
                        + e * p[:, 1:-1, 2:] + hh * f) / diag
                u = u.clone()
                for row in (0, 1):
                    at = (slice(None), slice(row, None, 2), slice((row + colour) % 2, None, 2))
                    u[at] += self.omega * (full[at] - u[at])
        return u

    def restrict(self, r):
        p = nn.functional.pad(r, (1, 1, 1, 1))
        t = 0.25 * p[:, :-2] + 0.5 * p[:, 1:-1] + 0.25 * p[:, 2:]
        t = 0.25 * t[..., :-2] + 0.5 * t[..., 1:-1] + 0.25 * t[..., 2:]
        return t[:, 1::2, 1::2]

    def prolong(self, e):
        b, h, w = e.shape
        fine = e.new_zeros(b, 2 * h + 1, 2 * w + 1)
        fine[:, 1::2, 1::2] = e
        fine[:, 2:-1:2, 1::2] = 0.5 * (e[:, 1:] + e[:, :-1])
        fine[:, 0, 1::2], fine[:, -1, 1::2] = 0.5 * e[:, 0], 0.5 * e[:, -1]
        fine[:, :, 2:-1:2] = 0.5 * (fine[:, :, 1:-2:2] + fine[:, :, 3::2])
        fine[:, :, 0], fine[:, :, -1] = 0.5 * fine[:, :, 1], 0.5 * fine[:, :, -2]
        return fine

    def cycle(self, u, a, f, hh):
        if min(u.shape[1:]) <= 3:
            for _ in range(4):
                u = self.relax(u, a, f, hh)
            return u
        u = self.relax(u, a, f, hh)
        r = f + laplacian(u, a, hh)
        coarse_a = a[:, ::2, ::2]
        e = self.cycle(torch.zeros_like(self.restrict(r)), coarse_a, self.restrict(r), 4 * hh)
        return self.relax(u + self.prolong(e), a, f, hh)

    def forward(self, a, f):
        a = a.double()
        u = torch.zeros(f.shape, dtype=torch.float64)
        hh = 1.0 / (f.shape[1] + 1) ** 2
        norms = []
        for _ in range(self.cycles):
            u = self.cycle(u, a, f.double(), hh)
            r = f + laplacian(u, a, hh)  # float32 + float64
            norms.append(torch.linalg.vector_norm(r, dim=(1, 2)))
        norms = torch.stack(norms, 1)
        peak = torch.linalg.vector_norm(u, ord=float("inf"), dim=(1, 2))
        return u.float(), norms, norms[:, 1:] / norms[:, :-1], peak


def get_inputs():
    b, h, w = 2, 47, 63
    return [0.5 + torch.rand(b, h + 2, w + 2), torch.randn(b, h, w)]


def get_init_inputs():
    return [2, 1]
