import torch
import torch.nn as nn


class Model(nn.Module):
    """Beam search steps of a small recurrent language model with blocking of repeated
    trigrams, forbidden tokens, length penalties, finished beams, and at the end a nucleus
    (top-p) filter with a repetition penalty."""

    def __init__(self, vocab, dim, beams, steps, top_p):
        super().__init__()
        self.vocab, self.beams, self.steps, self.top_p = vocab, beams, steps, top_p
        self.eos = 2
        self.embed = nn.Embedding(vocab, dim)
        self.cell = nn.GRUCell(dim, dim)
        self.register_buffer("forbidden", torch.tensor([0, 1, 17, vocab - 1]))

    def blocked(self, tokens):
        """Tokens which would repeat a trigram: (rows, vocab) bool."""
        grams = tokens.unfold(1, 3, 1)  # rows, t-2, 3
        tail = tokens[:, -2:].unsqueeze(1)
        same = (grams[..., :2] == tail).all(-1)
        target = torch.where(same, grams[..., 2], self.vocab)  # a spare column for the others
        mask = torch.zeros(tokens.shape[0], self.vocab + 1, dtype=torch.bool)
        return mask.scatter_(1, target, True)[:, :-1]

    def logits(self, h):
        return h @ self.embed.weight.T

    def forward(self, prompt, h0):
        b, k, v = prompt.shape[0], self.beams, self.vocab
        tokens = prompt.long().repeat_interleave(k, dim=0)
        h = h0.unsqueeze(1).expand(b, k, -1).flatten(0, 1)
        score = h0.new_full((b, k), float("-inf"))
        score[:, 0] = 0.0
        done = torch.zeros(b, k, dtype=torch.bool)
        length = torch.zeros(b, k, dtype=torch.int32)
        only_eos = h0.new_full((v,), float("-inf")).index_fill_(0, torch.tensor([self.eos]), 0.0)
        for _ in range(self.steps):
            h = self.cell(self.embed(tokens[:, -1]), h)
            logp = self.logits(h).log_softmax(-1)
            logp = logp.masked_fill(self.blocked(tokens), float("-inf"))
            logp = logp.index_fill(1, self.forbidden, float("-inf")).view(b, k, v)
            logp = torch.where(done.unsqueeze(-1), only_eos, logp)
            total = (score.unsqueeze(-1) + logp).flatten(1)
            score, flat = total.topk(k, dim=1)
            parent, token = torch.div(flat, v, rounding_mode="trunc"), torch.fmod(flat, v)
            rows = (parent + torch.arange(b).unsqueeze(1) * k).flatten()
            tokens = torch.cat([tokens.index_select(0, rows), token.view(-1, 1)], dim=1)
            h = h[rows]
            done = done.gather(1, parent)
            length = length.gather(1, parent) + (~done).to(torch.int32)
            done = done | (token == self.eos)
        normal = score / ((5.0 + length) / 6.0).pow(0.8)
        best, order = normal.sort(dim=1, descending=True)
        tokens = tokens.view(b, k, -1)
        tokens = torch.take_along_dim(tokens, order.unsqueeze(-1), dim=1)

        final = self.logits(h)
        used = torch.zeros_like(final, dtype=torch.bool).scatter_(1, tokens.flatten(0, 1), True)
        final = torch.where(used, torch.where(final > 0, final / 1.2, final * 1.2), final)
        ordered, index = final.sort(dim=-1, descending=True)
        p = ordered.softmax(-1)
        drop = p.cumsum(-1) - p > self.top_p
        drop = torch.zeros_like(drop).scatter(1, index, drop)
        nucleus = final.masked_fill(drop, float("-inf")).softmax(-1)
        counts = (~drop).sum(-1)
        mean = nucleus @ self.embed.weight
        return tokens.to(torch.int32), best, done, length, nucleus, counts, mean


def get_inputs():
    prompt = torch.randint(3, 90, (5, 13), dtype=torch.int16)
    prompt[:, 9:13] = prompt[:, 2:6]
    return [prompt, torch.randn(5, 61)]


def get_init_inputs():
    return [997, 61, 4, 6, 0.9]
