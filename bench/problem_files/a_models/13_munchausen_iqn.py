import copy
import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class NoisyLinear(nn.Module):
    """Factorised noisy layer; the noise vectors are handed in."""

    def __init__(self, d_in, d_out, std=0.5):
        super().__init__()
        r = 1 / math.sqrt(d_in)
        self.mu = nn.Parameter(torch.empty(d_out, d_in).uniform_(-r, r))
        self.sigma = nn.Parameter(torch.full((d_out, d_in), std * r))
        self.mu_b = nn.Parameter(torch.empty(d_out).uniform_(-r, r))
        self.sigma_b = nn.Parameter(torch.full((d_out,), std / math.sqrt(d_out)))

    def forward(self, x, e_in, e_out):
        e_in, e_out = [e.sign() * e.abs().sqrt() for e in (e_in, e_out)]
        return F.linear(x, self.mu + self.sigma * e_out.ger(e_in), self.mu_b + self.sigma_b * e_out)


class ImpalaBlock(nn.Module):
    def __init__(self, a, b):
        super().__init__()
        self.conv = nn.Conv2d(a, b, 3, padding=1)
        self.res = nn.ModuleList([nn.ModuleList([nn.Conv2d(b, b, 3, padding=1) for _ in range(2)])
                                  for _ in range(2)])

    def forward(self, x):
        x = F.max_pool2d(self.conv(x), 3, stride=2, padding=1)
        for c1, c2 in self.res:
            y = c2(F.relu(c1(F.relu(x))))
            y += x
            x = y
        return x


class IQN(nn.Module):
    def __init__(self, n_actions, chans, hidden, n_cos):
        super().__init__()
        self.torso = nn.ModuleList([ImpalaBlock(a, b) for a, b in zip([4] + chans[:-1], chans)])
        d = chans[-1] * 36
        self.cos = nn.Linear(n_cos, d)
        self.adv1, self.adv2 = NoisyLinear(d, hidden), NoisyLinear(hidden, n_actions)
        self.val1, self.val2 = NoisyLinear(d, hidden), NoisyLinear(hidden, 1)
        self.register_buffer("pis", math.pi * torch.arange(1, n_cos + 1).float().view(1, 1, -1))

    def features(self, x):
        x = x.to(self.cos.weight.dtype) / 255.0
        for b in self.torso:
            x = b(x)
        return F.adaptive_max_pool2d(F.relu(x), (6, 6)).flatten(1)

    def forward(self, feat, taus, noise):
        b, n = taus.shape
        phi = F.relu(self.cos(torch.cos(taus.unsqueeze(-1) * self.pis)))
        h = (feat.unsqueeze(1) * phi).view(b * n, -1)
        d, hid = h.shape[1], self.adv1.mu.shape[0]
        n_act = self.adv2.mu.shape[0]
        e = noise.split([d, hid, d, hid, hid, n_act, hid, 1])
        adv = self.adv2(F.relu(self.adv1(h, e[0], e[1])), e[4], e[5])
        val = self.val2(F.relu(self.val1(h, e[2], e[3])), e[6], e[7])
        return (val + adv - adv.mean(dim=1, keepdim=True)).view(b, n, -1)


class Model(nn.Module):
    """Munchausen IQN update: dueling noisy quantile net, frozen target copy, soft policy, quantile Huber."""

    def __init__(self, n_actions, chans, hidden, n_cos, gamma, alpha, tau, lo):
        super().__init__()
        self.gamma, self.alpha, self.tau, self.lo = gamma, alpha, tau, lo
        self.online = IQN(n_actions, chans, hidden, n_cos)
        self.target = copy.deepcopy(self.online).requires_grad_(False)
        for p in self.target.parameters():
            p.mul_(0.98)

    def log_policy(self, q):
        v = q.max(dim=1, keepdim=True)[0]
        z = q - v
        return z - self.tau * torch.logsumexp(z / self.tau, dim=1, keepdim=True)

    def forward(self, obs, action, reward, done, next_obs, taus, taus_next, noise, weight):
        quant = self.online(self.online.features(obs), taus, noise[0])
        idx = action.view(-1, 1, 1).expand(-1, taus.shape[1], 1)
        z = quant.gather(2, idx).squeeze(2)
        with torch.no_grad():
            q_next = self.target(self.target.features(next_obs), taus_next, noise[1])
            logpi_next = self.log_policy(q_next.mean(1))
            pi_next = torch.softmax(q_next.mean(1) / self.tau, dim=1)
            soft = (pi_next.unsqueeze(1) * (q_next - logpi_next.unsqueeze(1))).sum(2)
            q_now = self.target(self.target.features(obs), taus_next, noise[1]).mean(1)
            bonus = self.log_policy(q_now).gather(1, action.unsqueeze(1)).clamp_(min=self.lo, max=0)
            goal = reward.unsqueeze(1) + self.alpha * bonus + self.gamma * (1 - done).unsqueeze(1) * soft
        td = goal.unsqueeze(1) - z.unsqueeze(2)
        huber = torch.where(td.abs() <= 1.0, 0.5 * td.pow(2), td.abs() - 0.5)
        rho = (taus.unsqueeze(2) - (td.detach() < 0).to(td.dtype)).abs() * huber
        per = rho.sum(dim=1).mean(dim=1)
        priority = td.detach().abs().sum(dim=1).mean(dim=1)
        return (per * weight).mean(), priority, quant.mean(1)


def get_inputs():
    b, n, noise = 7, 11, 2 * 1152 + 4 * 192 + 9 + 1
    obs = torch.randint(0, 256, (2, b, 4, 84, 84), dtype=torch.uint8)
    return [obs[0], torch.randint(0, 9, (b,)), torch.randn(b), (torch.rand(b) < 0.2).float(), obs[1],
            torch.rand(b, n), torch.rand(b, n), torch.randn(2, noise), torch.rand(b)]


def get_init_inputs():
    return [9, [16, 32, 32], 192, 64, 0.99, 0.9, 0.03, -1.0]
