import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """k-mer embeddings of DNA pairs, similarity matrix, and Smith-Waterman with a
    linear gap by anti-diagonals; hard best score and a log-sum-exp soft score,
    plus canonical k-mer count cosine."""

    def __init__(self, k, dim, gap, bias, temp):
        super().__init__()
        self.k, self.gap, self.bias, self.temp = k, gap, bias, temp
        self.emb = nn.Embedding(4 ** k, dim)
        self.register_buffer("pow", 4 ** torch.arange(k - 1, -1, -1))

    def ids(self, s):
        win = s.unfold(1, self.k, 1)
        fwd = (win * self.pow).sum(-1)
        rev = ((3 - win).flip(-1) * self.pow).sum(-1)
        return fwd, torch.minimum(fwd, rev)

    def forward(self, a, b):
        ia, ca = self.ids(a)
        ib, cb = self.ids(b)
        ea = F.normalize(self.emb(ia), dim=-1)
        eb = F.normalize(self.emb(ib), dim=-1)
        sim = torch.bmm(ea, eb.transpose(1, 2)) * 2.0 - self.bias
        B, n, m = sim.shape
        # skew: S[:, d, i] = sim[:, i, d - i]
        i = torch.arange(n, device=a.device)
        d = torch.arange(n + m - 1, device=a.device)
        j = d[:, None] - i[None]
        ok = (j >= 0) & (j < m)
        S = sim[:, i[None].expand_as(j), j.clamp(0, m - 1)].masked_fill(~ok, -1e3)
        h1 = sim.new_zeros(B, n)
        h2 = sim.new_zeros(B, n)
        rows = []
        for t in range(n + m - 1):
            up = F.pad(h1[:, :-1], (1, 0))
            dg = F.pad(h2[:, :-1], (1, 0))
            h = torch.maximum(dg + S[:, t], torch.maximum(up, h1) - self.gap).clamp(min=0.0)
            h = h.masked_fill(~ok[t], 0.0)
            rows.append(h)
            h2, h1 = h1, h
        H = torch.stack(rows, dim=1).flatten(1)
        hard = H.amax(dim=1)
        soft = self.temp * torch.logsumexp(H / self.temp, dim=1)
        V = 4 ** self.k
        cnt_a = torch.zeros(B, V, device=a.device).scatter_add_(1, ca, torch.ones_like(ca, dtype=torch.float32))
        cnt_b = torch.zeros(B, V, device=a.device).scatter_add_(1, cb, torch.ones_like(cb, dtype=torch.float32))
        return hard, soft, F.cosine_similarity(cnt_a, cnt_b, dim=1)


def get_inputs():
    return [torch.randint(0, 4, (24, 47)), torch.randint(0, 4, (24, 53))]


def get_init_inputs():
    return [4, 24, 0.4, 0.3, 0.5]
