import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """Language-model training objective: shifted label-smoothed CE, z-loss, token unlikelihood on repeats."""

    def __init__(self, d_model, vocab, smoothing, z_weight, ul_weight, ignore_index=-100):
        super().__init__()
        self.ln_f = nn.LayerNorm(d_model)
        self.lm_head = nn.Linear(d_model, vocab, bias=False)
        self.smoothing, self.z_weight, self.ul_weight = smoothing, z_weight, ul_weight
        self.ignore_index = ignore_index
        self.softcap = 30.0

    def forward(self, hidden, labels):
        logits = self.lm_head(self.ln_f(hidden))
        logits = self.softcap * torch.tanh(logits / self.softcap)
        shift_logits = logits[..., :-1, :].contiguous()
        shift_labels = labels[..., 1:].contiguous()
        keep = shift_labels.ne(self.ignore_index)
        tgt = shift_labels.clamp(min=0)

        lse = torch.logsumexp(shift_logits, dim=-1, keepdim=True)
        logp = shift_logits - lse
        nll = -logp.gather(-1, tgt.unsqueeze(-1)).squeeze(-1)
        smooth = -logp.mean(-1)
        ntok = keep.sum().clamp(min=1)
        ce = ((1 - self.smoothing) * nll + self.smoothing * smooth).masked_fill(~keep, 0.0).sum() / ntok
        z = (lse.squeeze(-1).square() * keep).sum() / ntok

        with torch.no_grad():
            T = tgt.size(1)
            cand = tgt.unsqueeze(1).expand(-1, T, -1)
            causal = torch.tril(torch.ones(T, T, dtype=torch.bool, device=tgt.device), -1)
            cand = torch.where(causal & keep.unsqueeze(1), cand, torch.zeros_like(cand))
            cand = torch.where(cand == tgt.unsqueeze(2), torch.zeros_like(cand), cand)
            neg = torch.zeros_like(shift_logits).scatter_(2, cand, 1.0)
            neg[..., 0] = 0.0
        one_minus = (1.0 - logp.exp()).clamp(min=1e-5)
        ul = -(torch.log(one_minus) * neg).sum(-1)
        ul = (ul * keep).sum() / ntok
        return ce + self.z_weight * z + self.ul_weight * ul


def get_inputs():
    labels = torch.randint(1, 1511, (3, 46))
    labels[0, 39:] = -100
    labels[2, :6] = -100
    return [torch.randn(3, 46, 144), labels]


def get_init_inputs():
    return [144, 1511, 0.1, 1e-4, 0.5]
