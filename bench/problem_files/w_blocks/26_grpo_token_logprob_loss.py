import torch
import torch.nn as nn
import torch.nn.functional as F


def selective_log_softmax(logits, index):
    """log_softmax(logits).gather(index), row by row for low-precision logits to bound the memory."""
    if logits.dtype in (torch.float32, torch.float64):
        selected = torch.gather(logits, dim=-1, index=index.unsqueeze(-1)).squeeze(-1)
        lse = torch.stack([torch.logsumexp(lg, dim=-1) for lg in logits])
        return selected - lse
    per_token = []
    for row_logits, row_labels in zip(logits, index):
        row_logps = F.log_softmax(row_logits.float(), dim=-1)
        per_token.append(row_logps.gather(dim=-1, index=row_labels.unsqueeze(-1)).squeeze(-1))
    return torch.stack(per_token)


def entropy_from_logits(logits):
    pd = torch.softmax(logits.float(), dim=-1)
    return torch.logsumexp(logits.float(), dim=-1) - torch.sum(pd * logits.float(), dim=-1)


def masked_mean(x, mask, dim=None):
    if dim is None:
        return (x * mask).sum() / mask.sum().clamp(min=1.0)
    return (x * mask).sum(dim) / mask.sum(dim).clamp(min=1.0)


class Model(nn.Module):
    """
    The loss end of a GRPO / DAPO step: final norm, policy head and frozen reference head,
    token log probabilities, group-relative advantages, clipped ratio, k3 KL, entropy for logging.
    """

    def __init__(self, dim, vocab, group, temperature, eps_low, eps_high, beta):
        super().__init__()
        self.group, self.temperature = group, temperature
        self.eps_low, self.eps_high, self.beta = eps_low, eps_high, beta
        self.norm_weight = nn.Parameter(torch.ones(dim))
        self.lm_head = nn.Linear(dim, vocab, bias=False)
        self.ref_head = nn.Linear(dim, vocab, bias=False)
        nn.init.normal_(self.lm_head.weight, std=0.02)
        nn.init.normal_(self.ref_head.weight, std=0.02)
        self.ref_head.weight.requires_grad_(False)

    def _advantages(self, rewards):
        r = rewards.float().view(-1, self.group)
        mean = r.mean(dim=1, keepdim=True)
        std = r.std(dim=1, keepdim=True)
        return ((r - mean) / (std + 1e-4)).view(-1)

    def forward(self, hidden, ref_hidden, input_ids, rewards, prompt_lens, total_lens, old_noise):
        B, T, D = hidden.shape
        pos = torch.arange(T, device=hidden.device)[None]
        # position t predicts token t + 1; keep the completion only
        mask = ((pos >= prompt_lens[:, None] - 1) & (pos < total_lens[:, None] - 1))[:, :-1].float()
        labels = input_ids[:, 1:]

        h = F.rms_norm(hidden[:, :-1], (D,), self.norm_weight, 1e-6)
        logits = self.lm_head(h)
        logits = logits / self.temperature
        logps = selective_log_softmax(logits, labels)
        with torch.no_grad():
            ref_logits = self.ref_head(ref_hidden[:, :-1]) / self.temperature
            ref_logps = selective_log_softmax(ref_logits, labels)
            entropy = entropy_from_logits(logits)
            # the rollout engine's log probs: the trainer's, plus its numerical noise
            old_logps = logps.detach() + 0.1 * old_noise[:, :-1].to(logps.dtype)

        adv = self._advantages(rewards)[:, None]
        log_ratio = logps - old_logps
        ratio = torch.exp(log_ratio)
        clipped = torch.clamp(ratio, 1 - self.eps_low, 1 + self.eps_high)
        per_token = -torch.min(ratio * adv, clipped * adv)
        # dual clip for negative advantages
        per_token = torch.where(adv < 0, torch.min(per_token, -3.0 * adv), per_token)
        delta = (ref_logps - logps).clamp(-20, 20)
        kl = torch.exp(delta) - delta - 1
        per_token = per_token + self.beta * kl.clamp(max=10.0)

        loss = masked_mean(per_token, mask)
        with torch.no_grad():
            is_clipped = ((ratio < 1 - self.eps_low) & (adv < 0)) | ((ratio > 1 + self.eps_high) & (adv > 0))
            metrics = torch.stack([
                masked_mean(kl, mask),
                masked_mean(entropy, mask),
                masked_mean(is_clipped.float(), mask),
                masked_mean(logps, mask, dim=1).mean(),
            ])
        return loss, metrics, logps * mask


def get_inputs():
    B, T, D = 8, 128, 1024
    return [
        torch.randn(B, T, D), torch.randn(B, T, D),
        torch.randint(0, 128256, (B, T)),
        torch.rand(B),
        torch.randint(8, 32, (B,)), torch.randint(64, T + 1, (B,)),
        torch.randn(B, T),
    ]


def get_init_inputs():
    return [1024, 128256, 4, 1.0, 0.2, 0.28, 0.04]
