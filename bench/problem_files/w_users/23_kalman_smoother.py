from typing import NamedTuple

import torch
import torch.nn as nn


class Gauss(NamedTuple):
    mean: torch.Tensor
    cov: torch.Tensor


class Model(nn.Module):
    """Batched Kalman filter (Joseph form) + RTS smoother + square root checks in double."""

    def __init__(self, n=4, m=2, dt=0.1):
        super().__init__()
        self.n, self.m = n, m
        F_ = torch.eye(n)
        F_[0, 2] = F_[1, 3] = dt
        self.F = nn.Parameter(F_)
        H = torch.zeros(m, n)
        H[0, 0] = H[1, 1] = 1
        self.register_buffer("H", H)
        self.q = nn.Parameter(torch.full((n,), -2.0))
        self.r = nn.Parameter(torch.zeros(m * (m + 1) // 2))
        self.mu0 = nn.Parameter(torch.zeros(n))

    def R(self, dt):
        L = torch.zeros(self.m, self.m, dtype=dt, device=self.r.device)
        i, j = torch.tril_indices(self.m, self.m, device=self.r.device)
        L = L.index_put((i, j), self.r.to(dt))
        L = torch.tril(L, -1) + torch.diag_embed(torch.exp(torch.diagonal(L)))
        return L @ L.T

    def forward(self, z, seen):
        B, T, m = z.shape
        dt = torch.float64
        z = z.to(dt)
        Fm, H = self.F.to(dt), self.H.to(dt)
        Q = torch.diag(self.q.to(dt).exp())
        R = self.R(dt)
        I = torch.eye(self.n, dtype=dt, device=z.device)
        s = Gauss(self.mu0.to(dt).expand(B, -1), I.repeat(B, 1, 1))
        filt, pred = [], []
        ll = torch.zeros(B, dtype=dt, device=z.device)
        for t in range(T):
            p = Gauss(s.mean @ Fm.T, Fm @ s.cov @ Fm.mT + Q)
            pred.append(p)
            innov = z[:, t] - p.mean @ H.T
            S = H @ p.cov @ H.T + R
            L, _ = torch.linalg.cholesky_ex(S)
            K = torch.cholesky_solve(H @ p.cov, L).mT
            w = torch.linalg.solve_triangular(L, innov.unsqueeze(-1), upper=False).squeeze(-1)
            step = -0.5 * (w * w).sum(-1) - L.diagonal(dim1=-2, dim2=-1).log().sum(-1)
            ok = seen[:, t]
            ll += torch.where(ok, step, torch.zeros_like(step))
            K = K * ok[:, None, None]
            A = I - K @ H
            cov = A @ p.cov @ A.mT + K @ R @ K.mT
            cov = 0.5 * (cov + cov.transpose(-1, -2))
            s = Gauss(p.mean + torch.einsum("bnm,bm->bn", K, innov), cov)
            filt.append(s)
        sm = [filt[-1]]
        for t in reversed(range(T - 1)):
            f, p = filt[t], pred[t + 1]
            G = torch.linalg.solve(p.cov, Fm @ f.cov).mT
            nxt = sm[0]
            sm.insert(0, Gauss(f.mean + (G @ (nxt.mean - p.mean).unsqueeze(-1)).squeeze(-1),
                               f.cov + G @ (nxt.cov - p.cov) @ G.mT))
        mean = torch.stack([g.mean for g in sm], 1)
        cov = torch.stack([g.cov for g in sm], 1)
        std = cov.diagonal(dim1=-2, dim2=-1).clamp_min(1e-12).sqrt()
        ld = torch.linalg.slogdet(cov[:, ::3]).logabsdet
        dets = torch.det(cov[:, -1].float() + torch.eye(self.n, device=cov.device))
        nees = torch.einsum("bti,ij,btj->bt", mean[..., :2] - z, torch.linalg.inv(R), mean[..., :2] - z)
        gain_norm = torch.linalg.matrix_norm(cov, ord="fro").amax(1)
        tr = cov[:, 0].diagonal(offset=0, dim1=1, dim2=2).sum(1)
        return mean.float(), std, ll.mean(), ld, dets, nees.float(), gain_norm, tr


def get_inputs():
    z = torch.randn(4, 12, 2).cumsum(1)
    return [z, torch.rand(4, 12) > 0.25]


def get_init_inputs():
    return [4, 2, 0.1]
