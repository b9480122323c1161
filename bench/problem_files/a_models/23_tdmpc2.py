import copy

import torch
import torch.nn as nn
import torch.nn.functional as F


class NormedLinear(nn.Linear):
    def __init__(self, a, b, act=None):
        super().__init__(a, b)
        self.ln, self.act = nn.LayerNorm(b), act or nn.Mish(inplace=True)
        nn.init.trunc_normal_(self.weight, std=0.02)

    def forward(self, x):
        return self.act(self.ln(super().forward(x)))


class SimNorm(nn.Module):
    def forward(self, x):
        return F.softmax(x.view(*x.shape[:-1], -1, 8), dim=-1).view(*x.shape)


def mlp(dims, last):
    return nn.Sequential(*[NormedLinear(a, b) for a, b in zip(dims[:-1], dims[1:])], last)


class QEnsemble(nn.Module):
    def __init__(self, n, a, hid, out):
        super().__init__()
        dims = [a, hid, hid, out]
        self.w = nn.ParameterList([torch.randn(n, i, o) * 0.02 for i, o in zip(dims[:-1], dims[1:])])
        self.b = nn.ParameterList([torch.zeros(n, 1, o) for o in dims[1:]])
        self.g = nn.ParameterList([torch.ones(n, 1, hid) for _ in range(2)])
        self.h = nn.ParameterList([torch.zeros(n, 1, hid) for _ in range(2)])
        self.w[-1].data.mul_(0.1)

    def forward(self, x, detach=False):
        d = (lambda p: p.detach()) if detach else (lambda p: p)
        n, lead = self.w[0].shape[0], x.shape[:-1]
        x = x.reshape(1, -1, x.shape[-1]).expand(n, -1, -1)
        for i in range(len(self.w)):
            x = torch.baddbmm(d(self.b[i]), x, d(self.w[i]))
            if i < 2:
                x = F.mish(F.layer_norm(x, x.shape[-1:]) * d(self.g[i]) + d(self.h[i]))
        return x.view(-1, *lead, x.shape[-1])


class Model(nn.Module):
    """TD-MPC2 update: SimNorm latent rollout, two-hot symlog reward and Q losses, and the policy loss."""

    def __init__(self, d_obs, d_act, d_task, n_task, d_lat, hid, n_q, n_bins, vmax, horizon, rho, gamma):
        super().__init__()
        self.vmax, self.nb, self.H, self.rho, self.gamma = vmax, n_bins, horizon, rho, gamma
        self.task, z = nn.Embedding(n_task, d_task), d_lat + d_task
        self.enc = mlp([d_obs + d_task, hid // 2], NormedLinear(hid // 2, d_lat, SimNorm()))
        self.dyn = mlp([z + d_act, hid, hid], NormedLinear(hid, d_lat, SimNorm()))
        self.rew = mlp([z + d_act, hid, hid], nn.Linear(hid, n_bins))
        nn.init.normal_(self.rew[-1].weight, std=0.002)
        self.pi = mlp([z, hid, hid], nn.Linear(hid, 2 * d_act))
        self.q = QEnsemble(n_q, z + d_act, hid, n_bins)
        self.q_target = copy.deepcopy(self.q).requires_grad_(False)
        self.register_buffer("bins", torch.linspace(-vmax, vmax, n_bins))
        self.register_buffer("act_mask", (torch.rand(n_task, d_act) > 0.2).float())
        self.register_buffer("scale", torch.tensor(1.3))

    def two_hot(self, x):
        x = torch.clamp(torch.sign(x) * torch.log(1 + x.abs()), -self.vmax, self.vmax).squeeze(-1)
        pos = (x + self.vmax) / (2 * self.vmax / (self.nb - 1))
        idx = torch.floor(pos).long().clamp(max=self.nb - 2)
        off = (pos - idx).unsqueeze(-1)
        out = x.new_zeros(*x.shape, self.nb).scatter(-1, idx.unsqueeze(-1), 1 - off)
        return out.scatter(-1, (idx + 1).unsqueeze(-1), off)

    def two_hot_inv(self, logits):
        x = (F.softmax(logits, dim=-1) * self.bins).sum(-1, keepdim=True)
        return torch.sign(x) * (torch.exp(x.abs()) - 1)

    def soft_ce(self, logits, target):
        return -(self.two_hot(target) * F.log_softmax(logits, dim=-1)).sum(-1, keepdim=True)

    def policy(self, z, task, eps):
        mu, log_std = self.pi(torch.cat([z, self.task(task).expand(*z.shape[:-1], -1)], -1)).chunk(2, dim=-1)
        log_std = -10 + 0.5 * 12 * (torch.tanh(log_std) + 1)
        m = self.act_mask[task]
        mu, log_std, eps = [y * m for y in (mu, log_std, eps)]
        logp = (-0.5 * eps.pow(2) - log_std - 0.9189385).mul(m).mean(-1, keepdim=True)
        logp = logp * (m.sum(-1, keepdim=True) / m.shape[-1]).clamp(min=0.1)
        a = torch.tanh(mu + eps * log_std.exp())
        return a, logp - torch.log(F.relu(1 - a.pow(2)) + 1e-3).sum(-1, keepdim=True)

    def forward(self, obs, action, reward, task, eps, q_pick):
        e = self.task(task)
        join = lambda x, *a: torch.cat([x, e.expand(*x.shape[:-1], -1), *a], dim=-1)
        with torch.no_grad():
            nxt = self.enc(join(obs[1:]))
            qs = self.two_hot_inv(self.q_target(join(nxt, self.policy(nxt, task, eps[1:])[0])))
            td = reward + self.gamma * torch.minimum(*torch.index_select(qs, 0, q_pick).unbind(0))
        zs, l_con = [self.enc(join(obs[0]))], 0.0
        for t in range(self.H):
            zs.append(self.dyn(join(zs[-1], action[t])))
            l_con = l_con + F.mse_loss(zs[-1], nxt[t]) * self.rho ** t
        zs = torch.stack(zs)
        za = join(zs[:-1], action)
        w = self.rho ** torch.arange(self.H + 1, device=zs.device, dtype=zs.dtype)
        l_rew = (self.soft_ce(self.rew(za), reward).mean((1, 2)) * w[:-1]).sum() / self.H
        l_q = [(self.soft_ce(q, td).mean((1, 2)) * w[:-1]).sum() / self.H for q in self.q(za)]
        a_pi, logp = self.policy(zs.detach(), task, eps)
        q_pi = self.two_hot_inv(self.q(join(zs.detach(), a_pi), detach=True)).mean(0) / self.scale
        l_pi = ((1e-4 * logp - q_pi).mean((1, 2)) * w).mean()
        return 20 * l_con + 0.1 * l_rew + 0.1 * torch.stack(l_q).mean(), l_pi, td, zs


def get_inputs():
    H, b, a = 5, 37, 7
    return [torch.randn(H + 1, b, 39), torch.rand(H, b, a) * 2 - 1, torch.randn(H, b, 1),
            torch.randint(0, 11, (b,)), torch.randn(H + 1, b, a), torch.randperm(5)[:2]]


def get_init_inputs():
    return [39, 7, 24, 11, 256, 320, 5, 101, 10.0, 5, 0.5, 0.98]
