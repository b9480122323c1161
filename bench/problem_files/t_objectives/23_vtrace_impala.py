import torch
import torch.nn as nn
import torch.nn.functional as F


def action_log_probs(logits, actions):
    T, B, A = logits.shape
    return -F.nll_loss(
        F.log_softmax(logits.view(-1, A), dim=-1), actions.view(-1), reduction="none"
    ).view(T, B)


class Model(nn.Module):
    """IMPALA learner loss: V-trace targets, policy gradient, baseline and entropy terms, PopArt-like scale."""

    def __init__(self, discount, rho_bar, c_bar, baseline_cost, entropy_cost):
        super().__init__()
        self.discount = discount
        self.rho_bar, self.c_bar = rho_bar, c_bar
        self.baseline_cost, self.entropy_cost = baseline_cost, entropy_cost
        self.log_scale = nn.Parameter(torch.zeros(()))
        self.shift = nn.Parameter(torch.zeros(()))

    @torch.no_grad()
    def from_importance_weights(self, log_rhos, discounts, rewards, values, bootstrap):
        rhos = torch.exp(log_rhos)
        clipped_rhos = torch.clamp(rhos, max=self.rho_bar)
        cs = torch.clamp(rhos, max=self.c_bar)
        values_t_plus_1 = torch.cat([values[1:], torch.unsqueeze(bootstrap, 0)], dim=0)
        deltas = clipped_rhos * (rewards + discounts * values_t_plus_1 - values)
        acc = torch.zeros_like(bootstrap)
        result = []
        for t in range(discounts.shape[0] - 1, -1, -1):
            acc = deltas[t] + discounts[t] * cs[t] * acc
            result.append(acc)
        result.reverse()
        vs = torch.stack(result) + values
        vs_t_plus_1 = torch.cat([vs[1:], bootstrap.unsqueeze(0)], dim=0)
        pg_adv = clipped_rhos * (rewards + discounts * vs_t_plus_1 - values)
        return vs, pg_adv

    def forward(self, behaviour_logits, target_logits, actions, rewards, done, baseline, bootstrap):
        values = baseline * self.log_scale.exp() + self.shift
        rewards = torch.where(rewards < 0, 0.3 * rewards, rewards) * 5.0
        rewards = torch.tanh(rewards / 5.0)
        discounts = (~done).float() * self.discount
        target_lp = action_log_probs(target_logits, actions)
        behav_lp = action_log_probs(behaviour_logits, actions)
        vs, adv = self.from_importance_weights(
            (target_lp - behav_lp).detach(), discounts, rewards, values.detach(), bootstrap
        )
        pg_loss = (-target_lp * adv).mean(1).sum()
        baseline_loss = 0.5 * (vs - values).pow(2).mean(1).sum()
        p, lp = F.softmax(target_logits, -1), F.log_softmax(target_logits, -1)
        entropy_loss = (p * lp).sum(-1).mean(1).sum()
        return pg_loss + self.baseline_cost * baseline_loss + self.entropy_cost * entropy_loss


def get_inputs():
    T, B, A = 60, 40, 15
    tl = torch.randn(T, B, A)
    return [
        tl + 0.3 * torch.randn(T, B, A), tl, torch.randint(0, A, (T, B)), torch.randn(T, B),
        torch.rand(T, B) < 0.04, torch.randn(T, B), torch.randn(B),
    ]


def get_init_inputs():
    return [0.99, 1.0, 1.0, 0.5, 0.006]
