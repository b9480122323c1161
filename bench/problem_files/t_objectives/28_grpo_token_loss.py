import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """GRPO / DAPO token loss computed from hidden states in row chunks of the LM head."""

    def __init__(self, d, vocab, group, clip_low, clip_high, kl_coef, temperature, chunk):
        super().__init__()
        self.lm_head = nn.Linear(d, vocab, bias=False)
        self.group = group
        self.clip_low, self.clip_high = clip_low, clip_high
        self.kl_coef, self.temperature, self.chunk = kl_coef, temperature, chunk

    def selective_logps(self, hidden, ids):
        logps, ents = [], []
        for h, y in zip(hidden.split(self.chunk), ids.split(self.chunk)):
            logits = self.lm_head(h) / self.temperature
            lse = logits.logsumexp(-1)
            sel = logits.gather(-1, y.unsqueeze(-1)).squeeze(-1)
            logps.append(sel - lse)
            with torch.no_grad():
                p = F.softmax(logits, -1)
                ents.append(lse - (p * logits).sum(-1))
        return torch.cat(logps), torch.cat(ents)

    def advantages(self, rewards, lengths):
        r = rewards - 0.1 * F.relu(lengths - 30.0) / 10.0
        g = r.view(-1, self.group)
        adv = (g - g.mean(1, keepdim=True)) / (g.std(1, keepdim=True) + 1e-4)
        return adv.flatten()

    def forward(self, hidden, ids, mask, rewards, delta_old, delta_ref):
        logps, ent = self.selective_logps(hidden, ids)
        old = logps.detach() + delta_old
        ref = logps.detach() + delta_ref
        adv = self.advantages(rewards, mask.sum(1)).unsqueeze(1)
        coef_1 = torch.exp(logps - old)
        coef_2 = torch.clamp(coef_1, 1 - self.clip_low, 1 + self.clip_high)
        per_token = -torch.min(coef_1 * adv, coef_2 * adv)
        kl = torch.exp(ref - logps) - (ref - logps) - 1
        per_token = per_token + self.kl_coef * kl
        token_level = (per_token * mask).sum() / mask.sum().clamp(min=1.0)
        seq_level = ((per_token * mask).sum(-1) / mask.sum(-1).clamp(min=1.0)).mean()
        is_clipped = ((coef_1 < 1 - self.clip_low) & (adv < 0)) | ((coef_1 > 1 + self.clip_high) & (adv > 0))
        clip_ratio = (is_clipped.float() * mask).sum() / mask.sum()
        mean_ent = (ent * mask).sum() / mask.sum()
        return 0.5 * (token_level + seq_level), torch.stack((clip_ratio, mean_ent))


def get_inputs():
    B, T = 15, 34
    lens = torch.randint(10, T + 1, (B,))
    mask = (torch.arange(T)[None] < lens[:, None]).float()
    return [
        torch.randn(B, T, 88), torch.randint(0, 613, (B, T)), mask, torch.rand(B),
        0.15 * torch.randn(B, T), 0.3 * torch.randn(B, T),
    ]


def get_init_inputs():
    return [88, 613, 5, 0.2, 0.28, 0.04, 0.9, 4]
