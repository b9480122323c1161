from typing import NamedTuple, Optional

import torch
import torch.nn as nn


class Gaussian(NamedTuple):
    mean: torch.Tensor
    cov: torch.Tensor

    def propagate(self, A, Q):
        return Gaussian((A @ self.mean.unsqueeze(-1)).squeeze(-1), A @ self.cov @ A.mT + Q)


class CholeskyCov(nn.Module):
    """PSD matrix from an unconstrained lower triangle, filled in place by index."""

    def __init__(self, n, scale):
        super().__init__()
        self.n = n
        self.raw = nn.Parameter(torch.zeros(n * (n + 1) // 2))
        self.register_buffer("tril", torch.tril_indices(n, n), persistent=False)
        self.log_scale = scale

    def forward(self):
        L = self.raw.new_zeros(self.n, self.n)
        L[self.tril[0], self.tril[1]] = self.raw
        d = torch.diagonal(L)
        L = L - torch.diag_embed(d) + torch.diag_embed((d + self.log_scale).exp())
        return L @ L.t()


class Model(nn.Module):
    """Kalman filter with missing data and Joseph update, then RTS smoothing, float64 evidence."""

    def __init__(self, n_state, n_obs, n_feat):
        super().__init__()
        A = torch.eye(n_state)
        half = n_state // 2
        A[:half, half:] = 0.1 * torch.eye(half)
        self.A = nn.Parameter(A)
        self.H = nn.Parameter(torch.randn(n_obs, n_state) * 0.4)
        self.Q = CholeskyCov(n_state, -2.0)
        self.R = CholeskyCov(n_obs, -0.7)
        self.readin = nn.Linear(n_feat, n_obs)
        self.register_buffer("m0", torch.zeros(n_state))
        self.register_buffer("calls", torch.tensor(0))
        self.register_buffer("avg_evidence", torch.zeros((), dtype=torch.float64))

    def update(self, prior: Gaussian, y, present, H, R):
        innov = torch.where(present, y - prior.mean @ H.t(), torch.zeros_like(y))
        w = present.to(y.dtype)
        Hm = H * w.unsqueeze(-1)
        Rm = R * w.unsqueeze(-1) * w.unsqueeze(-2) + torch.diag_embed(1.0 - w)
        S = Hm @ prior.cov @ Hm.mT + Rm
        L = torch.linalg.cholesky(S)
        K = torch.cholesky_solve(Hm @ prior.cov, L).mT
        I_KH = torch.eye(H.shape[1], device=y.device, dtype=y.dtype) - K @ Hm
        cov = I_KH @ prior.cov @ I_KH.mT + K @ Rm @ K.mT
        mean = prior.mean + (K @ innov.unsqueeze(-1)).squeeze(-1)
        white = torch.linalg.solve_triangular(L, innov.unsqueeze(-1), upper=False).squeeze(-1)
        logdet = torch.diagonal(L, dim1=-2, dim2=-1).double().log().sum(-1)
        ll = -0.5 * white.double().square().sum(-1) - logdet - 0.919 * w.double().sum(-1)
        return Gaussian(mean, 0.5 * (cov + cov.mT)), ll

    def forward(self, x, present, init: Optional[Gaussian] = None, smooth: bool = True):
        B, T, _ = x.shape
        y = self.readin(x)
        Q, R = self.Q(), self.R()
        if init is None:
            n = self.m0.numel()
            init = Gaussian(self.m0.expand(B, n), torch.eye(n, device=x.device).expand(B, n, n))
        evidence = torch.zeros(B, dtype=torch.float64, device=x.device)
        belief, priors, posts = init, [], []
        for t in range(T):
            prior = belief.propagate(self.A, Q)
            belief, ll = self.update(prior, y[:, t], present[:, t], self.H, R)
            evidence = evidence + ll
            priors.append(prior)
            posts.append(belief)
        if smooth:
            for t in range(T - 2, -1, -1):
                nxt, pr, po = posts[t + 1], priors[t + 1], posts[t]
                G = torch.linalg.solve(pr.cov, self.A @ po.cov).mT
                m = po.mean + (G @ (nxt.mean - pr.mean).unsqueeze(-1)).squeeze(-1)
                P = po.cov + G @ (nxt.cov - pr.cov) @ G.mT
                posts[t] = po._replace(mean=m, cov=P)
        with torch.no_grad():
            self.calls += 1
            self.avg_evidence += (evidence.mean() - self.avg_evidence) / self.calls
        means = torch.stack([g.mean for g in posts], 1)
        var = torch.stack([torch.diagonal(g.cov, dim1=-2, dim2=-1) for g in posts], 1)
        return means, var, evidence, self.avg_evidence.float()


def get_inputs():
    return [torch.randn(448, 24, 5), torch.rand(448, 24, 3) > 0.25]


def get_init_inputs():
    return [6, 3, 5]
