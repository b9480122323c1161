import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, group, low, high, kl_weight, entropy_weight, max_len, cushion):
        super().__init__()
        self.group, self.low, self.high = group, low, high
        self.kl_weight, self.entropy_weight = kl_weight, entropy_weight
        self.max_len, self.cushion = max_len, cushion
        self.log_temp = nn.Parameter(0.2 * torch.randn(()))

    def forward(self, logits, old_logp, ref_logp, ids, lengths, rewards):
        b, t, v = logits.shape
        logp_all = torch.log_softmax(logits[:, :-1] * torch.exp(-self.log_temp), dim=-1)
        logp = logp_all.gather(-1, ids[:, 1:].unsqueeze(-1)).squeeze(-1)
        entropy = -(logp_all.exp() * logp_all).sum(-1)
        mask = (torch.arange(t - 1, device=logits.device) < lengths.unsqueeze(1)).to(logits.dtype)
        over = (lengths.to(logits.dtype) - (self.max_len - self.cushion)) / self.cushion
        r = rewards - over.clamp(0.0, 1.0)
        r = r.view(-1, self.group)
        adv = (r - r.mean(1, keepdim=True)) / (r.std(1, keepdim=True) + 1e-4)
        adv = adv.reshape(b, 1)
        delta = (logp - old_logp) * mask
        ratio = torch.exp(delta)
        clipped = ratio.clamp(1 - self.low, 1 + self.high)
        surrogate = torch.minimum(ratio * adv, clipped * adv)
        surrogate = torch.where(adv < 0, torch.maximum(surrogate, 3.0 * adv), surrogate)
        log_r = (ref_logp - logp) * mask
        k3 = torch.expm1(log_r) - log_r
        per_token = -surrogate + self.kl_weight * k3 - self.entropy_weight * entropy
        denom = mask.sum()
        token_loss = (per_token * mask).sum() / denom
        n = mask.sum(1).clamp_min(1.0)
        seq_ratio = torch.exp(delta.sum(1) / n)
        seq_loss = -torch.minimum(seq_ratio * adv[:, 0], seq_ratio.clamp(1 - 0.03, 1 + 0.04) * adv[:, 0]).mean()
        return {
            "loss": token_loss,
            "sequence_loss": seq_loss,
            "kl": (k3 * mask).sum(1) / n,
            "entropy": (entropy * mask).sum(1) / n,
            "clip_fraction": (((ratio - clipped).abs() * mask).sum() / denom),
            "advantages": adv.squeeze(1),
        }


def get_inputs():
    logits = 2 * torch.randn(42, 62, 509)
    ids = torch.randint(0, 509, (42, 62), dtype=torch.int64)
    old = torch.log_softmax(logits[:, :-1] + 0.2 * torch.randn(42, 61, 509), -1).gather(-1, ids[:, 1:, None])[..., 0]
    ref = torch.log_softmax(logits[:, :-1] + 0.3 * torch.randn(42, 61, 509), -1).gather(-1, ids[:, 1:, None])[..., 0]
    return [logits, old, ref, ids, torch.randint(5, 62, (42,)), torch.randn(42)]


def get_init_inputs():
    return [6, 0.2, 0.28, 0.04, 0.001, 61, 16]
