import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """Layer-normalised peephole LSTM with recurrent projection and variable lengths by masking."""

    def __init__(self, din, dh, proj):
        super().__init__()
        self.dh, self.proj = dh, proj
        self.wx = nn.Parameter(torch.randn(din, 4 * dh) * din ** -0.5)
        self.wh = nn.Parameter(torch.randn(proj, 4 * dh) * proj ** -0.5)
        self.b = nn.Parameter(torch.zeros(4 * dh))
        self.peep = nn.Parameter(torch.randn(3, dh) * 0.1)
        self.gx = nn.Parameter(torch.ones(4 * dh))
        self.gh = nn.Parameter(torch.ones(4 * dh))
        self.wp = nn.Parameter(torch.randn(dh, proj) * dh ** -0.5)
        self.cnorm = nn.LayerNorm(dh)

    def forward(self, x, lengths):
        T, B, _ = x.shape
        xs = F.layer_norm(torch.matmul(x, self.wx), (4 * self.dh,), self.gx)
        h = x.new_zeros(B, self.proj)
        c = x.new_zeros(B, self.dh)
        alive = (torch.arange(T, device=x.device)[:, None] < lengths).unsqueeze(-1)
        out = []
        for t in range(T):
            g = xs[t] + F.layer_norm(h @ self.wh, (4 * self.dh,), self.gh) + self.b
            i, f, u, o = g.chunk(4, 1)
            i = torch.sigmoid(i + self.peep[0] * c)
            f = torch.sigmoid(f + self.peep[1] * c)
            nc = f * c + i * torch.tanh(u)
            o = torch.sigmoid(o + self.peep[2] * nc)
            nh = (o * torch.tanh(self.cnorm(nc))) @ self.wp
            c = torch.where(alive[t], nc, c)
            h = torch.where(alive[t], nh, h)
            out.append(nh * alive[t])
        return torch.stack(out), h


def get_inputs():
    return [torch.randn(36, 9, 33), torch.tensor([36, 35, 30, 27, 27, 20, 11, 4, 1])]


def get_init_inputs():
    return [33, 70, 46]
