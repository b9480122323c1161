import torch
import torch.nn as nn


class Model(nn.Module):
    """Batched constant-velocity Kalman filter over many 2-D tracks with missing detections."""

    def __init__(self, dt, q, r):
        super().__init__()
        F = torch.eye(4)
        F[0, 2] = F[1, 3] = dt
        G = torch.tensor([[0.5 * dt * dt, 0.0], [0.0, 0.5 * dt * dt], [dt, 0.0], [0.0, dt]])
        H = torch.zeros(2, 4)
        H[0, 0] = H[1, 1] = 1.0
        self.register_buffer("F", F)
        self.register_buffer("Q", q * G @ G.t() + 1e-4 * torch.eye(4))
        self.register_buffer("H", H)
        self.register_buffer("R", r * torch.eye(2))

    def forward(self, z, valid, x, P):
        # z (T, N, 2), valid (T, N) bool, x (N, 4), P (N, 4, 4)
        eye = torch.eye(4, device=z.device, dtype=z.dtype)
        loglik = torch.zeros(z.shape[1], device=z.device)
        xs = torch.empty(z.shape[0], z.shape[1], 4, device=z.device)
        for t in range(z.shape[0]):
            x = x @ self.F.t()
            P = self.F @ P @ self.F.t() + self.Q
            innov = z[t] - x @ self.H.t()
            S = self.H @ P @ self.H.t() + self.R
            det = S[:, 0, 0] * S[:, 1, 1] - S[:, 0, 1] * S[:, 1, 0]
            Sinv = torch.stack((S[:, 1, 1], -S[:, 0, 1], -S[:, 1, 0], S[:, 0, 0]), dim=-1)
            Sinv = Sinv.view(-1, 2, 2) / det.view(-1, 1, 1)
            K = P @ self.H.t() @ Sinv
            x_upd = x + torch.bmm(K, innov.unsqueeze(-1)).squeeze(-1)
            A = eye - K @ self.H
            P_upd = A @ P @ A.transpose(1, 2) + K @ self.R @ K.transpose(1, 2)
            maha = torch.einsum("ni,nij,nj->n", innov, Sinv, innov)
            m = valid[t]
            loglik = loglik - 0.5 * torch.where(m, maha + det.log(), torch.zeros_like(maha))
            x = torch.where(m[:, None], x_upd, x)
            P = torch.where(m[:, None, None], P_upd, P)
            xs[t] = x
        return xs, P, loglik


def get_inputs():
    T, N = 6, 611
    z = torch.cumsum(0.3 * torch.randn(T, N, 2), dim=0)
    valid = torch.rand(T, N) > 0.2
    x = torch.randn(N, 4) * 0.2
    P = torch.eye(4).repeat(N, 1, 1)
    return [z, valid, x, P]


def get_init_inputs():
    return [0.5, 0.8, 0.1]
