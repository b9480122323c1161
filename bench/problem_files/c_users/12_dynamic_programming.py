import torch
import torch.nn as nn


class Model(nn.Module):
    """Soft-DTW, CTC-like forward recursion, linear-chain CRF, edit distance on integers and Viterbi with back-pointers."""

    def __init__(self, labels, gamma):
        super().__init__()
        self.trans = nn.Parameter(torch.randn(labels, labels) * 0.5)
        self.gamma = gamma

    def soft_dtw(self, a, b):
        cost = torch.cdist(a, b, p=2) + (a.sum(-1)[:, :, None] - b.sum(-1)[:, None, :]).square() * 0.01
        n, m = cost.shape[1:]
        inf = cost.new_full((cost.shape[0],), 1e4)
        prev = [cost.new_zeros(cost.shape[0])] + [inf] * m
        for i in range(n):
            cur = [inf]
            for j in range(m):
                r = torch.stack([prev[j], prev[j + 1], cur[j]], -1)
                cur.append(cost[:, i, j] - self.gamma * torch.logsumexp(-r / self.gamma, -1))
            prev = cur
        return prev[-1]

    def crf(self, em, tags):
        alpha = em[:, 0]
        for t in range(1, em.shape[1]):
            alpha = torch.logsumexp(alpha[:, :, None] + self.trans, 1) + em[:, t]
        z = alpha.logsumexp(-1)
        gold = em.gather(2, tags[..., None]).squeeze(-1).sum(1) + self.trans[tags[:, :-1], tags[:, 1:]].sum(1)
        return z - gold

    def viterbi(self, em):
        score, back = em[:, 0], []
        for t in range(1, em.shape[1]):
            best, arg = (score[:, :, None] + self.trans).max(1)
            score = best + em[:, t]
            back.append(arg)
        val, tag = score.max(1)
        path = [tag]
        for arg in reversed(back):
            path.append(arg.gather(1, path[-1][:, None]).squeeze(1))
        return val, torch.stack(path[::-1], 1)

    def edit(self, s, t):
        n, m = s.shape[1], t.shape[1]
        off = torch.arange(m + 1, device=s.device)
        row = off.expand(s.shape[0], -1)
        for i in range(n):
            sub = row[:, :-1] + (s[:, i : i + 1] != t).long()
            cand = torch.minimum(sub, row[:, 1:] + 1)
            cand = torch.cat([torch.full_like(cand[:, :1], i + 1), cand], 1)
            row = (cand - off).cummin(1).values + off
        return row[:, -1]

    def forward(self, a, b, em, tags, s, t):
        val, path = self.viterbi(em)
        return self.soft_dtw(a, b), self.crf(em, tags), (val, path), self.edit(s, t)


def get_inputs():
    return [torch.randn(5, 9, 3), torch.randn(5, 7, 3), torch.randn(17, 19, 11), torch.randint(0, 11, (17, 19)),
            torch.randint(0, 4, (29, 13)), torch.randint(0, 4, (29, 17))]


def get_init_inputs():
    return [11, 0.7]
