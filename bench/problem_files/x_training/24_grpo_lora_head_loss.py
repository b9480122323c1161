import torch
import torch.nn as nn
import torch.nn.functional as F

P, G, T, D, V, R = 2, 8, 256, 1024, 24000, 16


class Model(nn.Module):
    """GRPO: token log probabilities of a head with a low rank update over frozen weights,
    group normalised advantages, clipped ratio, k3 KL penalty and entropy bonus."""

    def __init__(self, dim, vocab, rank, eps_low, eps_high, beta):
        super().__init__()
        self.register_buffer("head", torch.randn(vocab, dim) / dim ** 0.5)
        self.register_buffer("ref_norm", torch.ones(dim))
        self.norm = nn.Parameter(torch.ones(dim) + 0.05 * torch.randn(dim))
        self.A = nn.Parameter(torch.randn(rank, dim) / dim ** 0.5)
        self.B = nn.Parameter(torch.randn(vocab, rank) * 0.05)
        self.lo, self.hi, self.beta, self.dim = eps_low, eps_high, beta, dim

    def token_logps(self, logits, ids):
        return logits.gather(-1, ids.unsqueeze(-1)).squeeze(-1) - logits.logsumexp(-1)

    def forward(self, hidden, ids, old_delta, rewards, lengths):
        p, g = rewards.shape
        x = F.rms_norm(hidden, (self.dim,), None, 1e-6)
        xn = x * self.norm
        logits = xn @ self.head.t() + (xn @ self.A.t()) @ self.B.t()
        logp = self.token_logps(logits, ids)
        with torch.no_grad():
            ref = self.token_logps((x * self.ref_norm) @ self.head.t(), ids)
        adv = rewards - rewards.mean(dim=1, keepdim=True)
        adv = (adv / (rewards.std(dim=1, keepdim=True) + 1e-2)).reshape(p * g, 1)
        ratio = torch.exp(logp - (ref + old_delta))
        clipped = ratio.clamp(1 - self.lo, 1 + self.hi)
        surrogate = torch.minimum(ratio * adv, clipped * adv)
        diff = ref - logp
        kl = diff.exp() - diff - 1
        mask = torch.arange(ids.shape[1], device=ids.device)[None] < lengths[:, None]
        per_seq = ((self.beta * kl - surrogate) * mask).sum(1) / lengths
        return per_seq.view(p, g).mean(1)


def get_inputs():
    return [torch.randn(P * G, T, D), torch.randint(0, V, (P * G, T)),
            0.2 * torch.randn(P * G, T), torch.randn(P, G), torch.randint(T // 2, T + 1, (P * G,))]


def get_init_inputs():
    return [D, V, R, 0.2, 0.28, 0.04]
