import torch
import torch.nn as nn
import torch.nn.functional as F


class SpectralConv(nn.Module):
    def __init__(self, c, m1, m2):
        super().__init__()
        self.m1, self.m2 = m1, m2
        self.w = nn.Parameter(torch.randn(2, c, c, m1, m2, dtype=torch.cfloat) / c)

    def forward(self, x):
        H, W = x.shape[-2:]
        X = torch.fft.rfft2(x, norm="ortho")
        Y = torch.zeros(x.shape[0], x.shape[1], H, W // 2 + 1, dtype=X.dtype, device=x.device)
        Y[:, :, : self.m1, : self.m2] = torch.einsum("bixy,ioxy->boxy", X[:, :, : self.m1, : self.m2], self.w[0])
        Y[:, :, -self.m1:, : self.m2] = torch.einsum("bixy,ioxy->boxy", X[:, :, -self.m1:, : self.m2], self.w[1])
        return torch.fft.irfft2(Y, s=(H, W), norm="ortho")


class Model(nn.Module):
    """Fourier operator + complex linear recurrent unit + rotary by complex numbers + split-step
    Schroedinger, everything returned as reals."""

    def __init__(self, c=12, modes=5, steps=4):
        super().__init__()
        self.lift = nn.Conv2d(3, c, 1)
        self.sc = nn.ModuleList([SpectralConv(c, modes, modes) for _ in range(2)])
        self.w = nn.ModuleList([nn.Conv2d(c, c, 1) for _ in range(2)])
        self.nu = nn.Parameter(torch.rand(c))
        self.theta = nn.Parameter(torch.rand(c) * 3)
        self.B = nn.Parameter(torch.randn(c, c, 2) * 0.2)
        self.proj = nn.Linear(2 * c, c)
        self.g = nn.Parameter(torch.tensor(0.5))
        self.steps = steps

    def grid(self, n, m, like):
        gx = torch.linspace(0, 1, n, device=like.device, dtype=like.dtype)
        gy = torch.linspace(0, 1, m, device=like.device, dtype=like.dtype)
        return torch.stack(torch.meshgrid(gx, gy, indexing="ij"))

    def lru(self, x):
        # x: B, T, C   lambda^t by cumulative products of polar numbers
        T = x.shape[1]
        r = torch.exp(-torch.exp(self.nu * -1.0))
        lam = torch.polar(r, self.theta)
        Bc = torch.view_as_complex(self.B)
        u = x.to(torch.complex64) @ Bc.mT * torch.sqrt(1 - r * r)
        h = torch.zeros_like(u[:, 0])
        hs = []
        for t in range(T):
            h = lam * h + u[:, t]
            hs.append(h)
        h = torch.stack(hs, 1)
        return self.proj(torch.view_as_real(h).flatten(-2))

    def rope(self, x):
        T, C = x.shape[1:]
        ang = torch.outer(torch.arange(T, device=x.device).float(),
                          10000 ** (-torch.arange(0, C, 2, device=x.device).float() / C))
        rot = torch.polar(torch.ones_like(ang), ang)
        xc = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
        return torch.view_as_real(xc * rot).flatten(2).type_as(x)

    def split_step(self, V):
        n = V.shape[-1]
        k = torch.fft.fftfreq(n, d=1.0 / n, device=V.device)
        k2 = k[:, None] ** 2 + k[None, :] ** 2
        kin = torch.exp(-0.5j * 1e-3 * k2)
        x = torch.linspace(-1, 1, n, device=V.device)
        psi = torch.exp(-(x[:, None] ** 2 + x[None, :] ** 2) / 0.1).to(torch.complex64) * torch.exp(5j * x)
        psi = psi / psi.abs().square().sum().sqrt()
        psi = psi.expand_as(V)
        for _ in range(self.steps):
            psi = psi * torch.exp(-0.05j * (V + self.g * n * n * (psi * psi.conj()).real))
            psi = torch.fft.ifft2(torch.fft.fft2(psi) * kin)
        return psi

    def forward(self, a):
        Bn, H, W = a.shape
        h = torch.cat([a[:, None], self.grid(H, W, a).expand(Bn, -1, -1, -1)], 1)
        h = self.lift(h)
        for sc, w in zip(self.sc, self.w):
            h = F.gelu(sc(h) + w(h))
        seq = h.mean(3).transpose(1, 2)
        seq = self.rope(self.lru(seq))
        psi = self.split_step(a)
        dens = psi.abs() ** 2
        cur = (psi.conj() * torch.roll(psi, -1, -1)).imag
        S = torch.fft.fftshift(torch.fft.fft2(h[:, 0]), dim=(-2, -1))
        spec = torch.log1p(S.abs())
        ac = torch.fft.irfft(torch.fft.rfft(seq, n=2 * H, dim=1).abs().square(), dim=1)[:, :H]
        coh = torch.abs(torch.vdot(psi[0].flatten(), psi[-1].flatten()))
        return h, seq, dens, cur, spec, ac, coh


def get_inputs():
    return [torch.randn(3, 24, 24)]


def get_init_inputs():
    return [12, 5, 4]
