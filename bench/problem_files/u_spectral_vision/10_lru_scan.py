import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class LRU(nn.Module):
    def __init__(self, d_model, d_state, r_min=0.4, r_max=0.99, max_phase=2 * math.pi):
        super().__init__()
        u1 = torch.rand(d_state)
        u2 = torch.rand(d_state)
        self.nu_log = nn.Parameter(torch.log(-0.5 * torch.log(u1 * (r_max ** 2 - r_min ** 2) + r_min ** 2)))
        self.theta_log = nn.Parameter(torch.log(max_phase * u2 + 1e-4))
        mod = torch.exp(-torch.exp(self.nu_log.detach()))
        self.gamma_log = nn.Parameter(torch.log(torch.sqrt(1 - mod ** 2)))
        self.B_re = nn.Parameter(torch.randn(d_state, d_model) / math.sqrt(2 * d_model))
        self.B_im = nn.Parameter(torch.randn(d_state, d_model) / math.sqrt(2 * d_model))
        self.C_re = nn.Parameter(torch.randn(d_model, d_state) / math.sqrt(d_state))
        self.C_im = nn.Parameter(torch.randn(d_model, d_state) / math.sqrt(d_state))
        self.D = nn.Parameter(torch.randn(d_model))

    def forward(self, x):
        B, L, _ = x.shape
        lam = torch.exp(torch.complex(-torch.exp(self.nu_log), torch.exp(self.theta_log)))
        Bn = torch.complex(self.B_re, self.B_im) * torch.exp(self.gamma_log).unsqueeze(-1)
        C = torch.complex(self.C_re, self.C_im)
        h = x.to(torch.complex64) @ Bn.mT                     # (B, L, N)
        a = lam
        step = 1
        while step < L:                                       # Hillis-Steele scan with constant diagonal
            shifted = F.pad(torch.view_as_real(h[:, :-step]), (0, 0, 0, 0, step, 0))
            h = h + a * torch.view_as_complex(shifted)
            a = a * a
            step *= 2
        return (h @ C.mT).real + self.D * x


class Model(nn.Module):
    """Linear recurrent unit block: complex diagonal recurrence by a log-depth scan, GLU, residual."""

    def __init__(self, d_model=32, d_state=24, depth=2):
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(d_model) for _ in range(depth))
        self.lrus = nn.ModuleList(LRU(d_model, d_state) for _ in range(depth))
        self.glus = nn.ModuleList(nn.Linear(d_model, 2 * d_model) for _ in range(depth))

    def forward(self, x):
        for norm, lru, glu in zip(self.norms, self.lrus, self.glus):
            y = lru(norm(x))
            y = F.glu(glu(F.gelu(y)), dim=-1)
            x = x + y
        return x


def get_inputs():
    return [torch.randn(2, 75, 32)]


def get_init_inputs():
    return [32, 24, 2]
