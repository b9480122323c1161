import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """Decoder with beam bookkeeping, a repetition penalty, data-dependent halting with .item() and a ragged loop over lengths."""

    def __init__(self, vocab, d, beams, steps):
        super().__init__()
        self.emb = nn.Parameter(torch.randn(vocab, d))
        self.rec = nn.Linear(d, d)
        self.beams, self.steps = beams, steps

    def forward(self, prompt, lengths, eos_bias):
        b, v = prompt.shape[0], self.emb.shape[0]
        pieces = []
        for row, n in zip(prompt, lengths.tolist()):
            pieces.append(self.emb[row[:n]].mean(0) if n > 0 else self.emb.new_zeros(self.emb.shape[1]))
        ctx = torch.tanh(self.rec(torch.stack(pieces)))

        h = ctx.repeat_interleave(self.beams, 0)
        scores = torch.full((b, self.beams), -1e4, device=h.device, dtype=h.dtype)
        scores[:, 0] = 0
        seqs = prompt.new_zeros(b, self.beams, 0)
        done = torch.zeros(b, self.beams, dtype=torch.bool, device=h.device)
        seen = torch.zeros(b, self.beams, v, dtype=torch.bool, device=h.device)
        only_eos = h.new_full((v,), -1e4)
        only_eos[0] = 0
        used = 0
        for step in range(self.steps):
            logits = h @ self.emb.t()
            logits[:, 0] += eos_bias * step
            logits = torch.where(seen.flatten(0, 1), torch.where(logits > 0, logits / 1.5, logits * 1.5), logits)
            lp = F.log_softmax(logits, -1).view(b, self.beams, v)
            lp = torch.where(done[..., None], only_eos, lp)
            total = (scores[..., None] + lp).flatten(1)
            scores, flat = total.topk(self.beams, dim=1)
            parent = torch.div(flat, v, rounding_mode="floor")
            token = flat % v
            gi = parent[..., None]
            seqs = torch.cat([seqs.gather(1, gi.expand(-1, -1, seqs.shape[2])), token[..., None]], 2)
            seen = seen.gather(1, gi.expand(-1, -1, v)).scatter(2, token[..., None], True)
            done = done.gather(1, parent) | (token == 0)
            h = h.view(b, self.beams, -1).gather(1, gi.expand(-1, -1, h.shape[1])).flatten(0, 1)
            h = torch.tanh(self.rec(h) + self.emb[token.flatten()])
            used = step + 1
            if done.all().item():
                break
        length = (seqs != 0).sum(2)
        best = scores / ((5 + length) / 6) ** 0.6
        return {"seqs": F.pad(seqs, (0, self.steps - used)), "scores": scores, "best": best.amax(1), "done": done, "used": used, "ctx": ctx}


def get_inputs():
    return [torch.randint(1, 53, (7, 11)), torch.randint(0, 12, (7,)), torch.tensor(2.5)]


def get_init_inputs():
    return [53, 16, 4, 9]
