from collections import namedtuple

import torch
import torch.nn as nn

CRFOut = namedtuple("CRFOut", ["loss", "marginals", "path", "best"])


class CRF(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.n = n
        self.trans = nn.Parameter(torch.randn(n, n) * 0.2)
        self.start = nn.Parameter(torch.zeros(n))
        self.end = nn.Parameter(torch.zeros(n))
        forbid = torch.zeros(n, n, dtype=torch.bool)
        # I-x (odd) may only follow B-x or I-x
        for j in range(2, n, 2):
            for i in range(n):
                if i not in (j, j - 1):
                    forbid[i, j] = True
        self.register_buffer("forbid", forbid)

    def T(self):
        return self.trans.masked_fill(self.forbid, -1e4)

    def numerator(self, e, tags, mask):
        T = self.T()
        m = mask.to(e.dtype)
        s = self.start[tags[:, 0]] + e[:, 0].gather(1, tags[:, :1]).squeeze(1)
        for t in range(1, e.shape[1]):
            step = T[tags[:, t - 1], tags[:, t]] + e[torch.arange(e.shape[0], device=e.device), t, tags[:, t]]
            s = s + step * m[:, t]
        last = mask.long().sum(1) - 1
        s += self.end[tags.gather(1, last.unsqueeze(1)).squeeze(1)]
        return s

    def alphas(self, e, mask):
        T = self.T()
        a = self.start + e[:, 0]
        out = [a]
        for t in range(1, e.shape[1]):
            nxt = torch.logsumexp(a.unsqueeze(2) + T, dim=1) + e[:, t]
            a = torch.where(mask[:, t].unsqueeze(1), nxt, a)
            out.append(a)
        return torch.stack(out, 1), torch.logsumexp(a + self.end, 1)

    def betas(self, e, mask):
        T = self.T()
        b = self.end.expand(e.shape[0], -1)
        out = [b]
        for t in range(e.shape[1] - 1, 0, -1):
            nb = torch.logsumexp(T + (e[:, t] + b).unsqueeze(1), dim=2)
            b = torch.where(mask[:, t, None], nb, b)
            out.append(b)
        return torch.stack(out[::-1], 1)

    @torch.no_grad()
    def viterbi(self, e, mask):
        T = self.T()
        sc = self.start + e[:, 0]
        hist = []
        ident = torch.arange(self.n, device=e.device).expand_as(sc)
        for t in range(1, e.shape[1]):
            v, i = (sc.unsqueeze(2) + T).max(dim=1)
            keep = mask[:, t : t + 1]
            sc = torch.where(keep, v + e[:, t], sc)
            hist.append(torch.where(keep, i, ident))
        best, tag = (sc + self.end).max(1)
        path = torch.empty(e.shape[:2], dtype=torch.long, device=e.device)
        path[:, -1] = tag
        for t in range(len(hist) - 1, -1, -1):
            tag = hist[t].gather(1, tag[:, None])[:, 0]
            path[:, t] = tag
        path[~mask] = -1
        return path, best


class Model(nn.Module):
    def __init__(self, vocab, dim, ntags):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim, padding_idx=0)
        self.lstm = nn.LSTM(dim, dim // 2, batch_first=True, bidirectional=True)
        self.fc = nn.Linear(dim, ntags)
        self.crf = CRF(ntags)

    def forward(self, tokens, tags):
        mask = tokens != 0
        mask[:, 0] = True
        h, _ = self.lstm(self.emb(tokens))
        e = self.fc(torch.tanh(h)) * 2
        al, Z = self.crf.alphas(e, mask)
        be = self.crf.betas(e, mask)
        num = self.crf.numerator(e, tags, mask)
        loss = (Z - num).div(mask.sum(1)).mean()
        marg = (al + be - Z[:, None, None]).exp() * mask.unsqueeze(-1)
        path, best = self.crf.viterbi(e.detach(), mask)
        return CRFOut(loss, marg, path, best)


def get_inputs():
    B, T = 6, 20
    tok = torch.randint(1, 200, (B, T))
    ln = torch.randint(8, T + 1, (B, 1))
    tok = tok * (torch.arange(T).unsqueeze(0) < ln)
    return [tok, torch.randint(0, 7, (B, T))]


def get_init_inputs():
    return [200, 32, 7]
