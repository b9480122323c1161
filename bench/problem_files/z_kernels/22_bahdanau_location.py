import torch
import torch.nn as nn


class Model(nn.Module):
    """Additive attention with location features by conv1d and a length mask; sharpened second moments."""

    def __init__(self, dq, dk, da, filters, width):
        super().__init__()
        self.wq, self.wk = nn.Linear(dq, da), nn.Linear(dk, da, bias=False)
        self.loc = nn.Conv1d(1, filters, width, padding=width // 2, bias=False)
        self.wl = nn.Linear(filters, da, bias=False)
        self.v = nn.Parameter(torch.randn(da) / da ** 0.5)

    def forward(self, query, keys, prev, lengths):
        b, tq, tk = prev.shape
        prev = prev / prev.sum(-1, keepdim=True)
        f = self.loc(prev.reshape(b * tq, 1, tk)).view(b, tq, -1, tk).transpose(2, 3)
        e = torch.tanh(self.wq(query).unsqueeze(2) + self.wk(keys).unsqueeze(1) + self.wl(f))
        s = torch.matmul(e, self.v)
        pos = torch.arange(tk, device=keys.device)
        s = s.masked_fill((pos >= lengths.unsqueeze(1)).unsqueeze(1), -1e9)
        p = torch.softmax(s, -1)
        ctx = torch.bmm(p, keys)
        posf = pos.to(p.dtype) / tk
        mu = (p * posf).sum(-1)
        var = (p * posf * posf).sum(-1) - mu * mu
        return ctx, torch.minimum(p, prev).sum(-1), mu, var


def get_inputs():
    return [torch.randn(16, 31, 120), torch.randn(16, 397, 160), torch.rand(16, 31, 397),
            torch.randint(150, 398, (16,))]


def get_init_inputs():
    return [120, 160, 112, 9, 15]
