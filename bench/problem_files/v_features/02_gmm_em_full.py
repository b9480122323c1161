import math

import torch
import torch.nn as nn


class Model(nn.Module):
    """EM of a Gaussian mixture with full covariances, in float64 where it matters.
    Starting precisions come packed as lower triangles (tril_indices + diag_embed)."""

    def __init__(self, k, dim, steps, ridge):
        super().__init__()
        self.steps = steps
        self.ridge = ridge
        self.mu0 = nn.Parameter(2.0 * torch.randn(k, dim))
        self.log_diag = nn.Parameter(0.1 * torch.randn(k, dim))
        self.packed = nn.Parameter(0.05 * torch.randn(k, dim * (dim - 1) // 2))
        self.logits = nn.Parameter(torch.zeros(k))
        self.register_buffer("low", torch.tril_indices(dim, dim, offset=-1))

    def log_density(self, x, mu, chol):
        d = x.shape[1]
        diff = x[None] - mu[:, None]  # k n d
        z = torch.linalg.solve_triangular(chol, diff.mT, upper=False)
        logdet = torch.diagonal(chol, dim1=-2, dim2=-1).log().sum(-1)
        return -0.5 * z.square().sum(1) - logdet[:, None] - 0.5 * d * math.log(2 * math.pi)

    def forward(self, x):
        x = x.double()
        n, d = x.shape
        mu = self.mu0.double()
        chol = torch.diag_embed(self.log_diag.exp()).double()
        chol[:, self.low[0], self.low[1]] = self.packed.double()
        log_pi = self.logits.double().log_softmax(0)
        history = []
        eye = torch.eye(d, dtype=x.dtype)
        for _ in range(self.steps):
            joint = log_pi[:, None] + self.log_density(x, mu, chol)
            evidence = joint.logsumexp(0)
            history.append(evidence.mean())
            r = (joint - evidence).exp()
            nk = r.sum(1) + 1e-6
            mu = torch.einsum("kn,nd->kd", r, x) / nk[:, None]
            diff = x[None] - mu[:, None]
            cov = torch.einsum("kn,knd,kne->kde", r, diff, diff) / nk[:, None, None]
            chol = torch.linalg.cholesky(cov + self.ridge * eye)
            log_pi = nk.log() - math.log(n)
        r = (log_pi[:, None] + self.log_density(x, mu, chol)).softmax(0)
        entropy = torch.special.entr(r.clamp_min(1e-12)).sum(0)
        hard = r.argmax(0).to(torch.int16)
        bic_terms = torch.stack(history) * n - 0.5 * mu.numel() * math.log(n)
        return mu.float(), torch.tril(chol).float(), log_pi.float(), entropy.float(), hard, bic_terms


def get_inputs():
    n, d = 703, 5
    centre = 3.0 * torch.randn(6, d)
    mix = torch.eye(d) + 0.3 * torch.randn(6, d, d)
    pick = torch.arange(n) % 6
    return [centre[pick] + torch.einsum("nij,nj->ni", mix[pick], torch.randn(n, d))]


def get_init_inputs():
    return [6, 5, 5, 1e-2]
