import torch
import torch.nn as nn


class Dice(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.alpha = nn.Parameter(torch.zeros(d))

    def forward(self, x):
        dims = tuple(range(x.dim() - 1))
        mu = x.mean(dims, keepdim=True)
        var = x.var(dims, keepdim=True, unbiased=False)
        p = torch.sigmoid((x - mu) / torch.sqrt(var + 1e-8))
        return p * x + (1 - p) * self.alpha * x


class Model(nn.Module):
    """Deep interest network: target-aware activation unit over a masked behaviour history, Dice MLP."""

    def __init__(self, items, cates, d, hidden):
        super().__init__()
        self.item = nn.Embedding(items, d)
        self.cate = nn.Embedding(cates, d)
        self.a1, self.ad = nn.Linear(8 * d, hidden), Dice(hidden)
        self.a2 = nn.Linear(hidden, 1)
        self.f1, self.fd1 = nn.Linear(6 * d, 61), Dice(61)
        self.f2, self.fd2 = nn.Linear(61, 33), Dice(33)
        self.f3 = nn.Linear(33, 2)

    def forward(self, item, cate, hist_i, hist_c, lengths):
        q = torch.cat([self.item(item), self.cate(cate)], -1)
        k = torch.cat([self.item(hist_i), self.cate(hist_c)], -1)
        T = k.size(1)
        qe = q.unsqueeze(1).expand(-1, T, -1)
        s = self.a2(self.ad(self.a1(torch.cat([qe, k, qe - k, qe * k], -1)))).transpose(1, 2)
        mask = (torch.arange(T, device=k.device)[None, :] < lengths[:, None]).unsqueeze(1)
        s = torch.where(mask, s, torch.zeros_like(s))
        interest = torch.matmul(s, k).squeeze(1)
        z = torch.cat([q, interest, q * interest], -1)
        z = self.fd2(self.f2(self.fd1(self.f1(z))))
        return torch.log_softmax(self.f3(z), dim=-1)


def get_inputs():
    B, T = 35, 28
    return [
        torch.randint(0, 700, (B,)),
        torch.randint(0, 43, (B,)),
        torch.randint(0, 700, (B, T)),
        torch.randint(0, 43, (B, T)),
        torch.randint(1, T + 1, (B,)),
    ]


def get_init_inputs():
    return [700, 43, 13, 37]
