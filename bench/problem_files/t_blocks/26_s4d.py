import math
import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """S4D: diagonal state space with S4D-Lin init, Vandermonde kernel and FFT convolution, GLU output."""

    def __init__(self, h, n):
        super().__init__()
        self.log_dt = nn.Parameter(torch.linspace(math.log(1e-3), math.log(1e-1), h))
        self.C = nn.Parameter(torch.randn(h, n, 2) * 0.7)
        self.log_a = nn.Parameter(torch.log(0.5 * torch.ones(h, n)))
        self.a_im = nn.Parameter(math.pi * torch.arange(n).float().repeat(h, 1))
        self.D = nn.Parameter(torch.randn(h))
        self.out = nn.Conv1d(h, 2 * h, 1)

    def kernel(self, L):
        dt = torch.exp(self.log_dt)
        C = torch.view_as_complex(self.C)
        A = -torch.exp(self.log_a) + 1j * self.a_im
        dtA = A * dt.unsqueeze(-1)
        K = dtA.unsqueeze(-1) * torch.arange(L, device=A.device)
        C = C * (torch.exp(dtA) - 1.0) / A
        return 2 * torch.einsum("hn,hnl->hl", C, torch.exp(K)).real

    def forward(self, u):
        L = u.size(-1)
        k = self.kernel(L)
        kf = torch.fft.rfft(k, n=2 * L)
        uf = torch.fft.rfft(u, n=2 * L)
        y = torch.fft.irfft(uf * kf, n=2 * L)[..., :L]
        y = y + u * self.D.unsqueeze(-1)
        return F.glu(self.out(F.gelu(y)), dim=-2)


def get_inputs():
    return [torch.randn(2, 44, 200)]


def get_init_inputs():
    return [44, 16]
