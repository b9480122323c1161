import torch
import torch.nn as nn
import torch.nn.functional as F


def position_encoding(sentence_size, dim):
    """J x d weights of the position encoding of Sukhbaatar et al."""
    j = torch.arange(1, sentence_size + 1, dtype=torch.float32)[:, None]
    k = torch.arange(1, dim + 1, dtype=torch.float32)[None]
    return (1 - j / sentence_size) - (k / dim) * (1 - 2 * j / sentence_size)


class Model(nn.Module):
    """End-to-end memory network, adjacent weight tying, temporal encoding, linear start, gated hops,
    and a key-value memory read by the same controller."""

    def __init__(self, vocab, dim, hops, n_mem, sent):
        super().__init__()
        self.hops = hops
        for hop in range(hops + 1):
            emb = nn.Embedding(vocab, dim, padding_idx=0)
            emb.weight.data.normal_(0, 0.1)
            emb.weight.data[0].zero_()
            self.add_module("C_{}".format(hop), emb)
        self.TA = nn.ParameterList([nn.Parameter(torch.randn(n_mem, dim) * 0.1) for _ in range(hops + 1)])
        self.gates = nn.ModuleList([nn.Linear(dim, dim) for _ in range(hops)])
        self.kv = nn.EmbeddingBag(vocab, dim, mode="sum", padding_idx=0)
        self.value = nn.Linear(dim, dim, bias=False)
        self.register_buffer("encoding", position_encoding(sent, dim))

    def embed(self, hop, ids):
        return getattr(self, f"C_{hop}")(ids)

    def forward(self, story, query, facts, answer):
        b, s, w = story.shape
        u = (self.embed(0, query) * self.encoding[: query.size(1)]).sum(1)
        empty = story.eq(0).all(-1)
        attn = []
        for hop in range(self.hops):
            m_a = (self.embed(hop, story) * self.encoding.unsqueeze(0).unsqueeze(1)).sum(2) + self.TA[hop]
            m_c = (self.embed(hop + 1, story.view(b, -1)).view(b, s, w, -1) * self.encoding).sum(2) + self.TA[hop + 1]
            score = torch.sum(m_a * u.unsqueeze(1).expand_as(m_a), 2)
            p = torch.softmax(score.masked_fill(empty, -1e4), dim=1) if hop else score * (~empty)  # linear start
            attn.append(p)
            o = torch.bmm(m_c.permute(0, 2, 1), p.unsqueeze(2)).squeeze(-1)
            t = torch.sigmoid(self.gates[hop](u))
            u = o * t + u * (1 - t)
        keys = self.kv(facts.flatten(0, 1)).view(b, facts.size(1), -1)
        p = F.softmax(torch.einsum("bd,bfd->bf", u, keys) / keys.size(-1) ** 0.5, -1)
        u = u + self.value(torch.einsum("bf,bfd->bd", p, keys))
        logits = u @ getattr(self, f"C_{self.hops}").weight.t()
        loss = F.cross_entropy(logits, answer, reduction="sum")
        return {"loss": loss, "logits": logits, "attention": torch.stack(attn, 1)}


def get_inputs():
    b, s, w = 23, 25, 7
    story = torch.randint(1, 143, (b, s, w)) * (torch.arange(w) < torch.randint(3, w + 1, (b, s, 1)))
    story = story * (torch.arange(s)[None, :, None] < torch.randint(5, s + 1, (b, 1, 1)))
    facts = torch.randint(0, 143, (b, 17, 4))
    facts[..., 0] = torch.randint(1, 143, (b, 17))
    return [story, torch.randint(1, 143, (b, 5)), facts, torch.randint(1, 143, (b,))]


def get_init_inputs():
    return [143, 54, 3, 25, 7]
