import math
import torch
import torch.nn as nn
import torch.nn.functional as F


def mlp(sizes, act=nn.ReLU):
    layers = []
    for i, (a, b) in enumerate(zip(sizes[:-1], sizes[1:])):
        layers.append(nn.Linear(a, b))
        if i < len(sizes) - 2:
            layers.append(act())
    return nn.Sequential(*layers)


def quantile_huber(quantiles, samples):
    pairwise = samples[:, None, None, :] - quantiles[:, :, :, None]
    abs_d = pairwise.abs()
    huber = torch.where(abs_d > 1, abs_d - 0.5, pairwise ** 2 * 0.5)
    n = quantiles.shape[2]
    tau = torch.arange(n, device=quantiles.device).float() / n + 1 / 2 / n
    return (torch.abs(tau[None, None, :, None] - (pairwise < 0).float()) * huber).mean()


class Model(nn.Module):
    """Truncated quantile critics on top of a squashed-gaussian SAC actor; noise passed in."""

    def __init__(self, obs, act, hidden, n_quantiles, n_nets, drop, gamma):
        super().__init__()
        self.actor = mlp([obs, hidden, 2 * act])
        self.critics = nn.ModuleList([mlp([obs + act, hidden, n_quantiles]) for _ in range(n_nets)])
        self.targets = nn.ModuleList([mlp([obs + act, hidden, n_quantiles]) for _ in range(n_nets)])
        self.log_alpha = nn.Parameter(torch.tensor(-1.0))
        self.target_entropy = -float(act)
        self.keep = n_quantiles * n_nets - drop * n_nets
        self.gamma = gamma

    def sample(self, s, eps):
        mean, log_std = self.actor(s).chunk(2, dim=-1)
        log_std = -5 + 0.5 * (2 - -5) * (torch.tanh(log_std) + 1)
        u = mean + log_std.exp() * eps
        logp = (-0.5 * eps.pow(2) - log_std - 0.5 * math.log(2 * math.pi)).sum(-1, keepdim=True)
        logp = logp - (2 * (math.log(2) - u - F.softplus(-2 * u))).sum(-1, keepdim=True)
        return torch.tanh(u), logp

    @staticmethod
    def q(nets, s, a):
        sa = torch.cat((s, a), dim=1)
        return torch.stack(tuple(n(sa) for n in nets), dim=1)

    def forward(self, s, a, r, s2, not_done, eps1, eps2):
        alpha = self.log_alpha.exp()
        with torch.no_grad():
            a2, lp2 = self.sample(s2, eps2)
            z2 = self.q(self.targets, s2, a2)
            sorted_z, _ = torch.sort(z2.reshape(s.shape[0], -1))
            target = r + not_done * self.gamma * (sorted_z[:, : self.keep] - alpha * lp2)
        critic_loss = quantile_huber(self.q(self.critics, s, a), target)
        pi, lp = self.sample(s, eps1)
        actor_loss = (alpha.detach() * lp - self.q(self.critics, s, pi).mean(2).mean(1, keepdim=True)).mean()
        alpha_loss = -(self.log_alpha * (lp + self.target_entropy).detach()).mean()
        return critic_loss, actor_loss, alpha_loss


def get_inputs():
    B, O, A = 72, 23, 7
    return [
        torch.randn(B, O), torch.rand(B, A) * 2 - 1, torch.randn(B, 1), torch.randn(B, O),
        (torch.rand(B, 1) > 0.05).float(), torch.randn(B, A), torch.randn(B, A),
    ]


def get_init_inputs():
    return [23, 7, 112, 25, 3, 2, 0.99]
