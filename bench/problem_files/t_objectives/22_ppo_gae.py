import torch
import torch.nn as nn
import torch.nn.functional as F


def layer_init(layer, std=2 ** 0.5):
    nn.init.orthogonal_(layer.weight, std)
    nn.init.constant_(layer.bias, 0.0)
    return layer


class Model(nn.Module):
    def __init__(self, obs_dim, n_act, hidden, gamma=0.99, lam=0.95, clip=0.2, vf=0.5, ent=0.01):
        super().__init__()
        self.critic = nn.Sequential(
            layer_init(nn.Linear(obs_dim, hidden)), nn.Tanh(),
            layer_init(nn.Linear(hidden, hidden)), nn.Tanh(),
            layer_init(nn.Linear(hidden, 1), 1.0),
        )
        self.actor = nn.Sequential(
            layer_init(nn.Linear(obs_dim, hidden)), nn.Tanh(),
            layer_init(nn.Linear(hidden, hidden)), nn.Tanh(),
            layer_init(nn.Linear(hidden, n_act), 0.01),
        )
        self.gamma, self.lam, self.clip, self.vf, self.ent = gamma, lam, clip, vf, ent

    @torch.no_grad()
    def gae(self, rewards, values, dones, next_value, next_done):
        T = rewards.shape[0]
        adv = torch.zeros_like(rewards)
        lastgaelam = torch.zeros_like(next_value)
        for t in reversed(range(T)):
            if t == T - 1:
                nonterminal = 1.0 - next_done
                nextvalues = next_value
            else:
                nonterminal = 1.0 - dones[t + 1]
                nextvalues = values[t + 1]
            delta = rewards[t] + self.gamma * nextvalues * nonterminal - values[t]
            lastgaelam = delta + self.gamma * self.lam * nonterminal * lastgaelam
            adv[t] = lastgaelam
        return adv, adv + values

    def forward(self, obs, actions, old_logp, rewards, dones, old_values, next_obs, next_done):
        next_value = self.critic(next_obs).squeeze(-1)
        adv, ret = self.gae(rewards, old_values, dones, next_value, next_done)
        b_obs = obs.flatten(0, 1)
        b_act, b_old = actions.reshape(-1), old_logp.reshape(-1)
        b_adv, b_ret, b_val = adv.reshape(-1), ret.reshape(-1), old_values.reshape(-1)

        logits = self.actor(b_obs)
        logits = logits - logits.logsumexp(dim=-1, keepdim=True)
        newlogp = logits.gather(-1, b_act[:, None]).squeeze(-1)
        entropy = -(logits.exp() * logits).sum(-1)
        newvalue = self.critic(b_obs).view(-1)

        logratio = (newlogp - b_old).clamp(-5, 5)
        ratio = logratio.exp()
        approx_kl = ((ratio - 1) - logratio).mean().detach()
        b_adv = (b_adv - b_adv.mean()) / (b_adv.std() + 1e-8)
        pg = torch.max(-b_adv * ratio, -b_adv * torch.clamp(ratio, 1 - self.clip, 1 + self.clip)).mean()
        v_unclipped = (newvalue - b_ret) ** 2
        v_clipped = (b_val + torch.clamp(newvalue - b_val, -self.clip, self.clip) - b_ret) ** 2
        v_loss = 0.5 * torch.max(v_unclipped, v_clipped).mean()
        return pg - self.ent * entropy.mean() + self.vf * v_loss, approx_kl


def get_inputs():
    T, N, D, A = 38, 24, 17, 6
    logp = F.log_softmax(0.3 * torch.randn(T, N, A), -1)
    act = torch.randint(0, A, (T, N))
    return [
        torch.randn(T, N, D), act, logp.gather(-1, act[..., None]).squeeze(-1), torch.randn(T, N),
        (torch.rand(T, N) < 0.05).float(), torch.randn(T, N), torch.randn(N, D), (torch.rand(N) < 0.05).float(),
    ]


def get_init_inputs():
    return [17, 6, 64]
