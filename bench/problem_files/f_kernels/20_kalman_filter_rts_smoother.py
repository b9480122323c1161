import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, dt, damping, obs_noise):
        super().__init__()
        self.dt, self.obs_noise = dt, obs_noise
        self.damping = nn.Parameter(torch.tensor(damping) * (1 + 0.1 * torch.rand(2)))
        self.log_q = nn.Parameter(-2 + 0.3 * torch.randn(4))
        self.tie = nn.Parameter(0.1 * torch.randn(2, 4))

    def forward(self, obs, seen, mean, cov, gain):
        t = obs.shape[1]
        eye2, eye4 = torch.eye(2, device=obs.device), torch.eye(4, device=obs.device)
        top = torch.cat((eye2, self.dt * eye2), 1)
        bottom = torch.cat((torch.zeros_like(eye2), torch.diag(torch.exp(-self.damping * self.dt))), 1)
        f = torch.cat((top, bottom), 0)
        h = torch.cat((eye2, torch.zeros_like(eye2)), 1) + self.tie
        q = torch.diag(self.log_q.exp())
        r = self.obs_noise * eye2 * gain.unsqueeze(-1)
        means, covs, pm, pc = [], [], [], []
        loglik = obs.new_zeros(obs.shape[0])
        for i in range(t):
            mean = mean @ f.T
            cov = f @ cov @ f.T + q
            pm.append(mean)
            pc.append(cov)
            innov = obs[:, i] - mean @ h.T
            s = h @ cov @ h.T + r
            det = s[:, 0, 0] * s[:, 1, 1] - s[:, 0, 1] * s[:, 1, 0]
            inv = torch.stack((s[:, 1, 1], -s[:, 0, 1], -s[:, 1, 0], s[:, 0, 0]), -1).view(-1, 2, 2) / det.view(-1, 1, 1)
            maha = torch.einsum("bi,bij,bj->b", innov, inv, innov)
            ok = seen[:, i]
            loglik = loglik + torch.where(ok, -0.5 * (maha + det.log() + 2 * 1.8378770664), 0.0)
            k = cov @ h.T @ inv * ok.view(-1, 1, 1)
            mean = mean + (k @ innov.unsqueeze(-1)).squeeze(-1)
            a = eye4 - k @ h
            cov = a @ cov @ a.transpose(1, 2) + k @ r @ k.transpose(1, 2)
            cov = 0.5 * (cov + cov.transpose(1, 2))
            means.append(mean)
            covs.append(cov)
        sm, sc = mean, cov
        out = [sm]
        for i in range(t - 2, -1, -1):
            g = torch.linalg.solve(pc[i + 1], f @ covs[i]).transpose(1, 2)
            sm = means[i] + (g @ (sm - pm[i + 1]).unsqueeze(-1)).squeeze(-1)
            sc = covs[i] + g @ (sc - pc[i + 1]) @ g.transpose(1, 2)
            out.append(sm)
        smooth = torch.stack(out[::-1], 1)
        chol = torch.linalg.cholesky(sc + 1e-5 * eye4)
        return smooth, torch.stack(means, 1), loglik, chol, chol.diagonal(dim1=1, dim2=2).log().sum(-1)


def get_inputs():
    n, t = 43, 14
    obs = torch.randn(n, t, 2).cumsum(1)
    cov = torch.eye(4).expand(n, 4, 4)
    gain = (0.5 + torch.rand(n, 1)).expand(n, 2)
    return [obs, torch.rand(n, t) < 0.8, torch.randn(n, 4), cov, gain]


def get_init_inputs():
    return [0.4, 0.3, 0.25]
