import torch
import torch.nn as nn
import torch.nn.functional as F

B, T, D, K = 64, 101, 1024, 36


class Model(nn.Module):
    """Linear chain CRF negative log likelihood over emissions of a gated head."""

    def __init__(self, dim, tags):
        super().__init__()
        self.hidden = nn.Linear(dim, dim)
        self.emit = nn.Linear(dim // 2, tags)
        self.trans = nn.Parameter(torch.randn(tags, tags) * 0.3)
        self.start = nn.Parameter(torch.randn(tags) * 0.3)
        self.end = nn.Parameter(torch.randn(tags) * 0.3)

    def forward(self, x, tags, lengths):
        b, t, _ = x.shape
        em = self.emit(F.glu(self.hidden(x), dim=-1)) * 2
        mask = torch.arange(t, device=x.device)[None, :] < lengths[:, None]
        steps = em.unbind(dim=1)
        alpha = self.start + steps[0]
        for i in range(1, t):
            nxt = torch.logsumexp(alpha.unsqueeze(2) + self.trans, dim=1) + steps[i]
            alpha = torch.where(mask[:, i, None], nxt, alpha)
        log_z = torch.logsumexp(alpha + self.end, dim=1)
        gold = em.gather(2, tags.unsqueeze(-1)).squeeze(-1)
        gold = (gold * mask).sum(1) + self.start[tags[:, 0]]
        pair = self.trans[tags[:, :-1], tags[:, 1:]]
        gold = gold + (pair * mask[:, 1:]).sum(1)
        last = tags.gather(1, (lengths - 1).unsqueeze(1)).squeeze(1)
        gold = gold + self.end[last]
        return ((log_z - gold) / lengths).mean()


def get_inputs():
    return [torch.randn(B, T, D), torch.randint(0, K, (B, T)), torch.randint(T // 2, T + 1, (B,))]


def get_init_inputs():
    return [D, K]
