import math

import torch
import torch.nn as nn
import torch.nn.functional as F


def layer_init(layer, std=math.sqrt(2), bias_const=0.0):
    nn.init.orthogonal_(layer.weight, std)
    nn.init.constant_(layer.bias, bias_const)
    return layer


class Model(nn.Module):
    """PPO update on a [T, N] rollout of pixel + vector observations: shared CNN
    trunk, GAE, clipped policy/value losses, masked categorical + Gaussian heads."""

    def __init__(self, in_ch, vec_dim, hidden, n_actions, cont_dim, gamma=0.99, lam=0.95,
                 clip_coef=0.2, ent_coef=0.01, vf_coef=0.5):
        super().__init__()
        self.gamma, self.lam = gamma, lam
        self.clip_coef, self.ent_coef, self.vf_coef = clip_coef, ent_coef, vf_coef
        self.network = nn.Sequential(
            layer_init(nn.Conv2d(in_ch, 24, 8, stride=4)),
            nn.ReLU(),
            layer_init(nn.Conv2d(24, 48, 4, stride=2)),
            nn.ReLU(),
            layer_init(nn.Conv2d(48, 48, 3, stride=1)),
            nn.ReLU(),
            nn.Flatten(),
            layer_init(nn.Linear(48 * 4 * 4, hidden)),
            nn.ReLU(),
        )
        self.vec = nn.Sequential(layer_init(nn.Linear(vec_dim, 64)), nn.Tanh())
        self.actor = layer_init(nn.Linear(hidden + 64, n_actions), std=0.01)
        self.actor_mean = layer_init(nn.Linear(hidden + 64, cont_dim), std=0.01)
        self.actor_logstd = nn.Parameter(torch.zeros(1, cont_dim))
        self.critic = layer_init(nn.Linear(hidden + 64, 1), std=1)
        self.register_buffer("obs_mean", torch.zeros(vec_dim))
        self.register_buffer("obs_var", torch.ones(vec_dim))

    def features(self, pixels, vec):
        v = (vec - self.obs_mean) / torch.sqrt(self.obs_var + 1e-8)
        v = torch.clamp(v, -10, 10)
        return torch.cat([self.network(pixels / 255.0), self.vec(v)], dim=1)

    @torch.no_grad()
    def compute_gae(self, rewards, values, dones, next_value):
        T = rewards.shape[0]
        advantages = torch.zeros_like(rewards)
        lastgaelam = torch.zeros_like(next_value)
        for t in reversed(range(T)):
            nextvalues = next_value if t == T - 1 else values[t + 1]
            nonterminal = 1.0 - dones[t]
            delta = rewards[t] + self.gamma * nextvalues * nonterminal - values[t]
            advantages[t] = lastgaelam = delta + self.gamma * self.lam * nonterminal * lastgaelam
        return advantages, advantages + values

    def forward(self, pixels, vec, action_mask, actions, cont_actions, old_logprob,
                rewards, dones, old_values, next_value):
        adv, ret = self.compute_gae(rewards, old_values, dones, next_value)
        b_adv, b_ret, b_val = adv.reshape(-1), ret.reshape(-1), old_values.reshape(-1)
        h = self.features(pixels.flatten(0, 1), vec.flatten(0, 1))

        logits = self.actor(h)
        logits = torch.where(action_mask.flatten(0, 1), logits, torch.tensor(-1e8, device=h.device))
        logp_all = logits - logits.logsumexp(dim=-1, keepdim=True)
        logp = logp_all.gather(1, actions.reshape(-1, 1)).squeeze(1)
        entropy = -(logp_all.exp() * logp_all.clamp(min=-1e6)).sum(-1)

        mean = self.actor_mean(h)
        logstd = self.actor_logstd.expand_as(mean)
        z = (cont_actions.flatten(0, 1) - mean) / logstd.exp()
        logp = logp + (-0.5 * z.pow(2) - logstd - 0.5 * math.log(2 * math.pi)).sum(1)
        entropy = entropy + (0.5 + 0.5 * math.log(2 * math.pi) + logstd).sum(1)

        logratio = logp - old_logprob.reshape(-1)
        ratio = logratio.exp()
        with torch.no_grad():
            approx_kl = ((ratio - 1) - logratio).mean()
            clipfrac = ((ratio - 1.0).abs() > self.clip_coef).float().mean()
        b_adv = (b_adv - b_adv.mean()) / (b_adv.std() + 1e-8)
        pg_loss1 = -b_adv * ratio
        pg_loss2 = -b_adv * torch.clamp(ratio, 1 - self.clip_coef, 1 + self.clip_coef)
        pg_loss = torch.max(pg_loss1, pg_loss2).mean()

        newvalue = self.critic(h).view(-1)
        v_unclipped = (newvalue - b_ret) ** 2
        v_clipped = b_val + torch.clamp(newvalue - b_val, -self.clip_coef, self.clip_coef)
        v_loss = 0.5 * torch.max(v_unclipped, (v_clipped - b_ret) ** 2).mean()
        loss = pg_loss - self.ent_coef * entropy.mean() + self.vf_coef * v_loss
        return loss, pg_loss, v_loss, approx_kl, clipfrac


def get_inputs():
    g = torch.Generator().manual_seed(12)
    T, N, A = 61, 5, 11
    act = torch.randint(0, A, (T, N), generator=g)
    mask = torch.rand(T, N, A, generator=g) > 0.3
    mask.scatter_(2, act.unsqueeze(-1), True)
    cont = 0.8 * torch.randn(T, N, 3, generator=g)
    old = -math.log(7.7) - 0.5 * cont.pow(2).sum(-1) - 1.5 * math.log(2 * math.pi)
    old = old + 0.15 * torch.randn(T, N, generator=g)
    return [
        torch.randint(0, 256, (T, N, 3, 64, 64), generator=g).float(),
        2 * torch.randn(T, N, 19, generator=g), mask, act, cont, old,
        torch.randn(T, N, generator=g), (torch.rand(T, N, generator=g) < 0.05).float(),
        torch.randn(T, N, generator=g), torch.randn(N, generator=g),
    ]


def get_init_inputs():
    return [3, 19, 320, 11, 3]
