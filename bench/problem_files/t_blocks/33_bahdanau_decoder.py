import torch
import torch.nn as nn


class Model(nn.Module):
    """Teacher-forced GRU decoder with location-sensitive additive attention."""

    def __init__(self, vocab, emb, enc, dec, att, filters, k):
        super().__init__()
        self.emb = nn.Embedding(vocab, emb)
        self.init = nn.Linear(enc, dec)
        self.mem = nn.Linear(enc, att, bias=False)
        self.query = nn.Linear(dec, att)
        self.loc = nn.Conv1d(2, filters, k, padding=k // 2, bias=False)
        self.loc_proj = nn.Linear(filters, att, bias=False)
        self.v = nn.Linear(att, 1, bias=False)
        self.cell = nn.GRUCell(emb + enc, dec)
        self.out = nn.Linear(dec + enc + emb, vocab)

    def forward(self, memory, lengths, tokens):
        b, s, _ = memory.shape
        pad = torch.arange(s, device=memory.device).unsqueeze(0) >= lengths.unsqueeze(1)
        keys = self.mem(memory)
        m = (~pad).unsqueeze(-1).to(memory.dtype)
        h = torch.tanh(self.init((memory * m).sum(1) / m.sum(1)))
        w = memory.new_zeros(b, s)
        cum = memory.new_zeros(b, s)
        e = self.emb(tokens)
        logits = []
        for t in range(tokens.shape[1]):
            loc = self.loc(torch.stack((w, cum), dim=1)).transpose(1, 2)
            energy = self.v(torch.tanh(keys + self.query(h).unsqueeze(1) + self.loc_proj(loc))).squeeze(-1)
            w = torch.softmax(energy.masked_fill(pad, float("-inf")), dim=-1)
            cum = cum + w
            ctx = torch.bmm(w.unsqueeze(1), memory).squeeze(1)
            h = self.cell(torch.cat((e[:, t], ctx), -1), h)
            logits.append(self.out(torch.cat((h, ctx, e[:, t]), -1)))
        return torch.stack(logits, 1).log_softmax(-1), cum


def get_inputs():
    return [
        torch.randn(4, 39, 48),
        torch.tensor([39, 31, 22, 10]),
        torch.randint(0, 117, (4, 17)),
    ]


def get_init_inputs():
    return [117, 29, 48, 62, 40, 6, 7]
