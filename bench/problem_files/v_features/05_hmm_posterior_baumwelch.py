import math

import torch
import torch.nn as nn


class Model(nn.Module):
    """Gaussian HMM: forward-backward in logs over ragged sequences, pair posteriors,
    one Baum-Welch update, and the Viterbi path with int16 back pointers."""

    def __init__(self, states, dim):
        super().__init__()
        self.pi = nn.Parameter(torch.randn(states))
        self.trans = nn.Parameter(torch.randn(states, states) + 2.0 * torch.eye(states))
        self.mu = nn.Parameter(1.5 * torch.randn(states, dim))
        self.log_s = nn.Parameter(-0.3 + 0.1 * torch.randn(states, dim))

    def forward(self, x, lengths):
        b, t, _ = x.shape
        s = self.pi.shape[0]
        log_pi = self.pi.log_softmax(0)
        log_a = self.trans.log_softmax(1)
        z = (x.unsqueeze(2) - self.mu) * (-self.log_s).exp()
        emit = -0.5 * (z.square() + math.log(2 * math.pi)).sum(-1) - self.log_s.sum(-1)
        live = torch.arange(t)[None] < lengths[:, None].long()  # b t

        alpha = [log_pi + emit[:, 0]]
        for i in range(1, t):
            a = torch.logsumexp(alpha[-1].unsqueeze(2) + log_a, dim=1) + emit[:, i]
            alpha.append(torch.where(live[:, i, None], a, alpha[-1]))
        evidence = alpha[-1].logsumexp(1)

        beta = [x.new_zeros(b, s)]
        for i in range(t - 2, -1, -1):
            nxt = beta[0] + emit[:, i + 1]
            v = torch.logsumexp(log_a + nxt.unsqueeze(1), dim=2)
            beta.insert(0, torch.where(live[:, i + 1, None], v, torch.zeros_like(v)))
        alpha, beta = torch.stack(alpha, 1), torch.stack(beta, 1)
        gamma = ((alpha + beta - evidence[:, None, None]).exp()) * live.unsqueeze(-1)

        pair = alpha[:, :-1, :, None] + log_a + (emit + beta)[:, 1:, None, :]
        pair = (pair - evidence[:, None, None, None]).masked_fill(~live[:, 1:, None, None], -math.inf)
        xi = pair.flatten(0, 1).exp().sum(0)
        new_a = xi / xi.sum(1, keepdim=True)
        mass = gamma.sum((0, 1))
        new_mu = torch.einsum("bts,btd->sd", gamma, x) / mass[:, None]
        second = torch.einsum("bts,btd,btd->sd", gamma, x, x) / mass[:, None]
        new_var = (second - new_mu**2).clamp(min=1e-3)

        with torch.no_grad():
            score = log_pi + emit[:, 0]
            back = torch.zeros(b, t, s, dtype=torch.int16)
            idle = torch.arange(s, dtype=torch.int16).expand(b, s)
            for i in range(1, t):
                best, arg = (score.unsqueeze(2) + log_a).max(dim=1)
                keep = live[:, i, None]
                back[:, i] = torch.where(keep, arg.to(torch.int16), idle)
                score = torch.where(keep, best + emit[:, i], score)
            state = score.argmax(1)
            path = torch.full((b, t), -1, dtype=torch.int32)
            for i in range(t - 1, -1, -1):
                path[:, i] = torch.where(live[:, i], state, -1)
                state = back[:, i].gather(1, state[:, None]).squeeze(1).long()
        return evidence, gamma, new_a, new_mu, new_var, path


def get_inputs():
    x = torch.randn(9, 33, 4) + 1.5 * torch.randn(9, 11, 4).repeat_interleave(3, dim=1)
    return [x, torch.tensor([33, 31, 20, 9, 1, 27, 33, 14, 2], dtype=torch.int32)]


def get_init_inputs():
    return [7, 4]
