import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """Hamiltonian network, energy 0.5 z'Mz + sum of log-cosh ridge terms, analytic gradient, leapfrog rollout."""

    def __init__(self, n, ridges, steps, dt):
        super().__init__()
        self.n, self.steps, self.dt = n, steps, dt
        self.tril = nn.Parameter(torch.randn(n * (n + 1) // 2) * 0.1)
        self.stiff = nn.Parameter(torch.randn(n, n) * 0.3)
        self.W = nn.Parameter(torch.randn(ridges, n) / n ** 0.5)
        self.b = nn.Parameter(torch.zeros(ridges))
        self.a = nn.Parameter(torch.randn(ridges) * 0.1)
        self.damping = nn.Parameter(torch.full((n,), -4.0))

    def mass_inverse(self):
        # Cholesky factor from packed parameters, softplus diagonal
        idx = torch.tril_indices(self.n, self.n, device=self.tril.device)
        L = torch.zeros(self.n, self.n, device=self.tril.device, dtype=self.tril.dtype)
        L[idx[0], idx[1]] = self.tril
        d = torch.diagonal(L)
        L = L - torch.diag_embed(d) + torch.diag_embed(F.softplus(d) + 0.5)
        return L @ L.t()

    def potential(self, q, K):
        u = F.linear(q, self.W, self.b)
        logcosh = u.abs() + F.softplus(-2.0 * u.abs()) - 0.6931471805599453
        return 0.5 * torch.einsum("bi,ij,bj->b", q, K, q) + (F.softplus(self.a) * logcosh).sum(-1)

    def grad_potential(self, q, K):
        u = F.linear(q, self.W, self.b)
        return q @ K + (F.softplus(self.a) * torch.tanh(u)) @ self.W

    def forward(self, z, force):
        q, p = z.split(self.n, dim=-1)
        Minv = self.mass_inverse()
        K = self.stiff @ self.stiff.mT
        K = 0.5 * (K + K.mT) + 1e-2 * torch.eye(self.n, device=z.device)
        decay = torch.exp(-self.dt * F.softplus(self.damping))
        qs, ps, hs = [q], [p], []
        for i in range(self.steps):
            p = p - 0.5 * self.dt * (self.grad_potential(q, K) - force[:, i])
            q = q + self.dt * (p @ Minv)
            p = p - 0.5 * self.dt * (self.grad_potential(q, K) - force[:, i])
            p = p * decay
            hs.append(self.potential(q, K) + 0.5 * (p @ Minv * p).sum(-1))
            qs.append(q)
            ps.append(p)
        traj = torch.cat([torch.stack(qs, 1), torch.stack(ps, 1)], dim=-1)
        energy = torch.stack(hs, dim=1)
        drift = (energy - energy[:, :1]).abs().amax(dim=1)
        return traj, energy, drift


def get_inputs():
    return [torch.randn(19, 14), torch.randn(19, 15, 7) * 0.1]


def get_init_inputs():
    return [7, 30, 15, 0.05]
