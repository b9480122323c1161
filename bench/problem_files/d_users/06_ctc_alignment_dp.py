import torch
import torch.nn as nn
import torch.nn.functional as F

NEG = -1e5


def interleave_blank(targets, blank=0):
    B, U = targets.shape
    ext = targets.new_full((B, 2 * U + 1), blank)
    ext[:, 1::2] = targets
    return ext


def ctc_forward(logp, targets, in_len, tgt_len):
    """Hand-written CTC: slices of a fresh buffer written in place at every frame."""
    B, T, _ = logp.shape
    ext = interleave_blank(targets)
    S = ext.shape[1]
    em = logp.gather(2, ext.unsqueeze(1).expand(-1, T, -1))
    skip = torch.zeros_like(ext, dtype=torch.bool)
    skip[:, 2:] = (ext[:, 2:] != 0) & (ext[:, 2:] != ext[:, :-2])
    alpha = logp.new_full((B, S), NEG)
    alpha[:, :2] = em[:, 0, :2]
    history = [alpha]
    for t in range(1, T):
        nxt = alpha.clone()
        nxt[:, 1:] = torch.logaddexp(alpha[:, 1:], alpha[:, :-1])
        hop = torch.where(skip[:, 2:], alpha[:, :-2], NEG)
        nxt[:, 2:] = torch.logaddexp(nxt[:, 2:].clone(), hop)
        nxt += em[:, t]
        alpha = torch.where((t < in_len).view(-1, 1), nxt, alpha)
        history.append(alpha)
    ends = torch.stack((2 * tgt_len, (2 * tgt_len - 1).clamp_min(0)), dim=1)
    return alpha.gather(1, ends).logsumexp(1), torch.stack(history, 1)


class StridedFrontend(nn.Module):
    def __init__(self, feat, dim):
        super().__init__()
        self.conv = nn.ModuleDict({
            "down": nn.Conv1d(feat, dim, 5, stride=2, padding=2),
            "mix": nn.Conv1d(dim, dim, 3, padding=1, groups=4),
        })
        self.bn = nn.BatchNorm1d(dim, momentum=None)

    def forward(self, x, lengths):
        h = self.conv["down"](x.mT)
        h = h + F.gelu(self.bn(self.conv["mix"](h)))
        return h.mT, torch.div(lengths - 1, 2, rounding_mode="floor") + 1


class Model(nn.Module):
    """CTC loss as a dynamic programme, with greedy collapse and an intermediate CTC head."""

    def __init__(self, feat, dim, vocab):
        super().__init__()
        self.front = StridedFrontend(feat, dim)
        self.rnn = nn.GRU(dim, dim, batch_first=True)
        self.head = nn.Linear(dim, vocab)
        self.feedback = nn.Linear(vocab, dim, bias=False)
        self.feedback.weight = nn.Parameter(self.head.weight.detach().t().clone())
        self.head_inter = nn.Linear(dim, vocab)
        self.head_inter.weight = self.head.weight

    @staticmethod
    def greedy(logp, lengths):
        best = logp.argmax(-1)
        prev = F.pad(best, (1, 0), value=-1)[:, :-1]
        live = torch.arange(best.shape[1], device=best.device) < lengths[:, None]
        keep = (best != prev) & (best != 0) & live
        pos = keep.long().cumsum(1)
        out = torch.zeros_like(best)
        slot = torch.where(keep, pos - 1, best.shape[1] - 1)
        out.scatter_(1, slot, torch.where(keep, best, torch.zeros_like(best)))
        return out, keep.sum(1)

    def forward(self, x, targets, in_len, tgt_len, inter_weight: float = 0.3):
        h, in_len = self.front(x, in_len)
        inter = self.head_inter(h).log_softmax(-1)
        h = h + self.feedback(inter.exp())
        h, _ = self.rnn(h)
        logp = self.head(h).log_softmax(-1)
        ll, hist = ctc_forward(logp, targets, in_len, tgt_len)
        loss = -(ll / tgt_len).mean()
        if inter_weight > 0:
            ll_i, _ = ctc_forward(inter, targets, in_len, tgt_len)
            loss = (1 - inter_weight) * loss - inter_weight * (ll_i / tgt_len).mean()
        _, n_hyp = self.greedy(logp.detach(), in_len)
        return loss, ll, hist[:, -1], n_hyp, in_len


def get_inputs():
    return [torch.randn(24, 64, 32), torch.randint(1, 16, (24, 8)),
            torch.randint(44, 65, (24,)), torch.randint(3, 9, (24,))]


def get_init_inputs():
    return [32, 48, 16]
