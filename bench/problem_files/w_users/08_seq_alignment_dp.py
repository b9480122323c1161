import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """Smith-Waterman (hard, integers) on anti-diagonals + differentiable soft Needleman-Wunsch
    + k-mer profile of the sequences."""

    def __init__(self, n_letters=21, dim=24, k=3):
        super().__init__()
        self.k = k
        self.n_letters = n_letters
        self.embed = nn.Embedding(n_letters, dim)
        self.proj = nn.Linear(dim, dim, bias=False)
        self.gap_open = nn.Parameter(torch.tensor(-1.0))
        self.logtemp = nn.Parameter(torch.zeros(()))
        g = torch.Generator().manual_seed(7)
        blosum = torch.randint(-4, 5, (n_letters, n_letters), generator=g)
        blosum = torch.tril(blosum) + torch.tril(blosum, -1).T
        blosum.fill_diagonal_(6)
        self.register_buffer("blosum", blosum)

    def sw(self, a, b):
        # integer local alignment
        B, n = a.shape
        m = b.shape[1]
        sub = self.blosum[a[:, :, None], b[:, None, :]]
        H = torch.zeros(B, n + 1, m + 1, dtype=torch.int64, device=a.device)
        for s in range(2, n + m + 1):
            lo, hi = max(1, s - m), min(n, s - 1)
            i = torch.arange(lo, hi + 1, device=a.device)
            j = s - i
            diag = H[:, i - 1, j - 1] + sub[:, i - 1, j - 1]
            gap = torch.maximum(H[:, i - 1, j], H[:, i, j - 1]) - 3
            H[:, i, j] = torch.maximum(diag, gap).clamp(min=0)
        flat = H.view(B, -1)
        score, where = flat.max(1)
        ends = torch.stack([where // (m + 1), where % (m + 1)], 1)
        return score, ends

    def soft_nw(self, sim):
        # skewed storage, so that each anti-diagonal is one row
        B, n, m = sim.shape
        T = F.softplus(self.logtemp) + 0.3
        NEG = -1e6
        skew = F.pad(sim, (0, n), value=NEG).reshape(B, -1)[:, : n * (m + n - 1)].view(B, n, m + n - 1)
        cur = sim.new_full((B, n + 1), NEG)
        prev = cur.clone()
        prev[:, 0] = 0.0
        outs = []
        for d in range(n + m - 1):
            sub = prev[:, :-1] + skew[:, :, d]
            up = cur[:, :-1] + self.gap_open
            left = cur[:, 1:] + self.gap_open
            new = T * torch.logsumexp(torch.stack([sub, up, left], -1) / T, -1)
            valid = (skew[:, :, d] > NEG / 2)
            new = torch.where(valid, new, torch.full_like(new, NEG))
            prev = cur
            cur = torch.cat([cur.new_full((B, 1), NEG), new], 1)
            outs.append(new[:, -1])
        return outs[-1], torch.stack(outs, 1)[:, -m:]

    def kmers(self, a):
        w = a.unfold(1, self.k, 1)
        code = torch.zeros_like(w[..., 0])
        for i in range(self.k):
            code = code * 4 + (w[..., i] & 3)
        hist = torch.zeros(a.shape[0], 4 ** self.k, device=a.device)
        hist.scatter_add_(1, code, torch.ones_like(code, dtype=hist.dtype))
        return hist / hist.sum(1, keepdim=True)

    def forward(self, a, b):
        score, ends = self.sw(a, b)
        ea, eb = self.proj(self.embed(a)), self.proj(self.embed(b))
        sim = torch.bmm(F.normalize(ea, dim=-1), F.normalize(eb, dim=-1).transpose(1, 2)) * 3
        total, row = self.soft_nw(sim)
        ka, kb = self.kmers(a), self.kmers(b)
        js_m = 0.5 * (ka + kb)
        js = 0.5 * (torch.xlogy(ka, ka) + torch.xlogy(kb, kb)).sum(1) - torch.xlogy(js_m, js_m).sum(1)
        identity = (a[:, : b.shape[1]] == b[:, : a.shape[1]]).float().mean(1)
        return total, row, score, ends, js, identity


def get_inputs():
    return [torch.randint(0, 21, (4, 24)), torch.randint(0, 21, (4, 28))]


def get_init_inputs():
    return [21, 24, 3]
