import torch
import torch.nn as nn
import torch.nn.functional as F

NEG = -1e30


class Model(nn.Module):
    """CTC negative log likelihood by the forward (alpha) recursion in log space, variable lengths."""

    def __init__(self, d, vocab, blank=0):
        super().__init__()
        self.out = nn.Linear(d, vocab)
        self.blank = blank

    def forward(self, enc, targets, in_lens, tgt_lens):
        B, T, _ = enc.shape
        logp = F.log_softmax(self.out(enc), dim=-1)
        S = 2 * targets.size(1) + 1
        ext = torch.full((B, S), self.blank, dtype=torch.long, device=enc.device)
        ext[:, 1::2] = targets
        skip = torch.zeros(B, S, dtype=torch.bool, device=enc.device)
        skip[:, 2:] = (ext[:, 2:] != self.blank) & (ext[:, 2:] != ext[:, :-2])
        em = logp.gather(2, ext.unsqueeze(1).expand(-1, T, -1))

        alpha = torch.full((B, S), NEG, device=enc.device)
        alpha = torch.cat([em[:, 0, :2], alpha[:, 2:]], dim=1)
        for t in range(1, T):
            a1 = F.pad(alpha, (1, 0), value=NEG)[:, :-1]
            a2 = F.pad(alpha, (2, 0), value=NEG)[:, :-2]
            a2 = torch.where(skip, a2, torch.full_like(a2, NEG))
            new = torch.logsumexp(torch.stack([alpha, a1, a2], dim=0), dim=0) + em[:, t]
            alpha = torch.where((t < in_lens).unsqueeze(1), new, alpha)

        end = (2 * tgt_lens).unsqueeze(1)
        tail = torch.cat([alpha.gather(1, end), alpha.gather(1, end - 1)], dim=1)
        nll = -torch.logsumexp(tail, dim=1)
        ent = -(logp.exp() * logp).sum(-1).mean()
        return (nll / tgt_lens.float()).mean() - 0.02 * ent


def get_inputs():
    B, T, L = 7, 52, 13
    return [
        torch.randn(B, T, 48),
        torch.randint(1, 33, (B, L)),
        torch.randint(36, T + 1, (B,)),
        torch.randint(5, L + 1, (B,)),
    ]


def get_init_inputs():
    return [48, 33]
