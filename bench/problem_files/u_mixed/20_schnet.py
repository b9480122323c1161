import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class ShiftedSoftplus(nn.Module):
    def __init__(self):
        super().__init__()
        self.shift = math.log(2.0)

    def forward(self, x):
        return F.softplus(x) - self.shift


class GaussianSmearing(nn.Module):
    def __init__(self, start, stop, num):
        super().__init__()
        offset = torch.linspace(start, stop, num)
        self.coeff = -0.5 / float(offset[1] - offset[0]) ** 2
        self.register_buffer("offset", offset)

    def forward(self, dist):
        dist = dist.unsqueeze(-1) - self.offset
        return torch.exp(self.coeff * torch.pow(dist, 2))


class Interaction(nn.Module):
    def __init__(self, dim, n_rbf, filters):
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(n_rbf, filters), ShiftedSoftplus(), nn.Linear(filters, filters))
        self.lin1 = nn.Linear(dim, filters, bias=False)
        self.lin2 = nn.Linear(filters, dim)
        self.act = ShiftedSoftplus()
        self.lin = nn.Linear(dim, dim)

    def forward(self, x, src, dst, rbf, C):
        W = self.mlp(rbf) * C.view(-1, 1)
        h = self.lin1(x)
        msg = h[src] * W
        agg = torch.zeros_like(h).index_add_(0, dst, msg)
        return self.lin(self.act(self.lin2(agg)))


class Model(nn.Module):
    """SchNet: continuous-filter convolutions over all pairs with cosine cutoff, per-molecule energies."""

    def __init__(self, dim, filters, n_rbf, blocks, cutoff, max_z, n_mol):
        super().__init__()
        self.cutoff, self.n_mol = cutoff, n_mol
        self.embedding = nn.Embedding(max_z, dim, padding_idx=0)
        self.smear = GaussianSmearing(0.0, cutoff, n_rbf)
        self.blocks = nn.ModuleList([Interaction(dim, n_rbf, filters) for _ in range(blocks)])
        self.out1, self.act, self.out2 = nn.Linear(dim, dim // 2), ShiftedSoftplus(), nn.Linear(dim // 2, 1)
        self.atomref = nn.Embedding(max_z, 1)

    def forward(self, z, pos, batch):
        n = z.shape[0]
        # every ordered pair i != j; pairs across molecules or past the cutoff get weight zero
        ar = torch.arange(n, device=pos.device)
        dst = ar.repeat_interleave(n - 1)
        src = torch.arange(n - 1, device=pos.device).repeat(n)
        src = src + (src >= dst).long()
        d = (pos[src] - pos[dst]).pow(2).sum(-1).clamp_min(1e-12).sqrt()
        same = batch[src] == batch[dst]
        C = 0.5 * (torch.cos(d * math.pi / self.cutoff) + 1.0)
        C = C * (same & (d < self.cutoff)).to(C.dtype)
        rbf = self.smear(d)
        h = self.embedding(z)
        for blk in self.blocks:
            h = h + blk(h, src, dst, rbf, C)
        e = self.out2(self.act(self.out1(h))) + self.atomref(z)
        energy = torch.zeros(self.n_mol, 1, device=pos.device).index_add_(0, batch, e)
        count = torch.bincount(batch, minlength=self.n_mol).unsqueeze(-1)
        return energy, energy / count, h


def get_inputs():
    return [torch.randint(1, 10, (33,)), torch.randn(33, 3) * 2.0, torch.arange(3).repeat_interleave(torch.tensor([9, 13, 11]))]


def get_init_inputs():
    return [32, 24, 20, 2, 5.0, 12, 3]
