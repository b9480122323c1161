import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, dim, tags):
        super().__init__()
        self.tags = tags
        self.emit = nn.Linear(dim, tags)
        self.trans = nn.Parameter(0.6 * torch.randn(tags, tags))
        self.start = nn.Parameter(torch.randn(tags))
        self.end = nn.Parameter(torch.randn(tags))

    def forward(self, x, gold, lengths):
        b, t, _ = x.shape
        em = self.emit(x).transpose(0, 1)
        mask = torch.arange(t, device=x.device).unsqueeze(1) < lengths
        alpha = self.start + em[0]
        best = alpha
        back = []
        for i in range(1, t):
            live = mask[i].unsqueeze(1)
            step = torch.logsumexp(alpha.unsqueeze(2) + self.trans, dim=1) + em[i]
            alpha = torch.where(live, step, alpha)
            top, arg = (best.unsqueeze(2) + self.trans).max(dim=1)
            best = torch.where(live, top + em[i], best)
            back.append(torch.where(live, arg, torch.arange(self.tags, device=x.device)))
        log_z = torch.logsumexp(alpha + self.end, dim=1)
        score, cur = (best + self.end).max(dim=1)
        path = [cur]
        for ptr in reversed(back):
            cur = ptr.gather(1, cur.unsqueeze(1)).squeeze(1)
            path.append(cur)
        path = torch.stack(path[::-1], dim=1)
        path = torch.where(mask.T, path, torch.full_like(path, -1))
        g = gold.T
        pair = self.trans[g[:-1], g[1:]]
        unary = em.gather(2, g.unsqueeze(2)).squeeze(2)
        last = gold.gather(1, (lengths - 1).unsqueeze(1)).squeeze(1)
        right = self.start[g[0]] + (unary * mask).sum(0) + (pair * mask[1:]).sum(0) + self.end[last]
        nll = log_z - right
        margin = (score - right) / lengths
        hit = ((path == gold) & mask.T).sum(1) / lengths
        return nll.mean(), log_z, score, margin, path, hit


def get_inputs():
    return [torch.randn(37, 31, 44), torch.randint(0, 23, (37, 31)), torch.randint(3, 32, (37,))]


def get_init_inputs():
    return [44, 23]
