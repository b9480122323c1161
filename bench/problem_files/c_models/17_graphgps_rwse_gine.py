import torch
import torch.nn as nn
import torch.nn.functional as F


def random_walk_encoding(adj, steps):
    deg = adj.sum(-1, keepdim=True).clamp(min=1)
    p = adj / deg
    out, m = [], p
    for _ in range(steps):
        out.append(torch.diagonal(m, dim1=-2, dim2=-1))
        m = m @ p
    return torch.stack(out, dim=-1)


def masked_batch_norm(x, mask, weight, bias, eps=1e-5):
    m = mask.unsqueeze(-1).to(x.dtype)
    cnt = m.sum()
    mu = (x * m).sum((0, 1)) / cnt
    var = ((x - mu) ** 2 * m).sum((0, 1)) / cnt
    return (x - mu) / torch.sqrt(var + eps) * weight + bias


class MaskedBN(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d))
        self.bias = nn.Parameter(torch.zeros(d))

    def forward(self, x, mask):
        return masked_batch_norm(x, mask, self.weight, self.bias)


class GINEDense(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.eps = nn.Parameter(torch.zeros(1))
        self.nn = nn.Sequential(nn.Linear(d, d), nn.ReLU(), nn.Linear(d, d))

    def forward(self, h, e, adj):
        # message j -> i : relu(h_j + e_ij)
        msg = F.relu(h[:, None, :, :] + e)
        agg = torch.einsum("bij,bijd->bid", adj, msg)
        return self.nn((1 + self.eps) * h + agg)


class GPSLayer(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.local = GINEDense(d)
        self.attn = nn.MultiheadAttention(d, heads, batch_first=True)
        self.norm1_local, self.norm1_attn, self.norm2 = MaskedBN(d), MaskedBN(d), MaskedBN(d)
        self.ff = nn.Sequential(nn.Linear(d, 2 * d), nn.ReLU(), nn.Linear(2 * d, d))

    def forward(self, h, e, adj, mask):
        h_local = self.norm1_local(h + self.local(h, e, adj), mask)
        h_attn, _ = self.attn(h, h, h, key_padding_mask=~mask, need_weights=False)
        h_attn = self.norm1_attn(h + h_attn, mask)
        h = h_local + h_attn
        h = self.norm2(h + self.ff(h), mask)
        return h * mask.unsqueeze(-1)


class Model(nn.Module):
    """GraphGPS regressor on padded molecules: RWSE, dense GINE and global attention, L1 loss."""

    def __init__(self, atoms, bonds, d, pe_steps, layers, heads):
        super().__init__()
        self.pe_steps = pe_steps
        self.atom = nn.Embedding(atoms, d - 16)
        self.bond = nn.Embedding(bonds + 1, d, padding_idx=0)
        self.pe_norm = MaskedBN(pe_steps)
        self.pe = nn.Linear(pe_steps, 16)
        self.layers = nn.ModuleList(GPSLayer(d, heads) for _ in range(layers))
        self.head = nn.Sequential(nn.Linear(2 * d, d), nn.ReLU(), nn.Linear(d, 1))

    def forward(self, atom_types, bond_types, target):
        mask = atom_types >= 0
        edge = bond_types > 0
        dtype = self.pe.weight.dtype
        adj = edge.to(dtype)
        pe = self.pe(self.pe_norm(random_walk_encoding(adj, self.pe_steps), mask))
        h = torch.cat([self.atom(atom_types.clamp(min=0)), pe], dim=-1) * mask.unsqueeze(-1)
        e = self.bond(bond_types)
        for layer in self.layers:
            h = layer(h, e, adj, mask)
        n = mask.sum(1, keepdim=True).to(dtype)
        mean = h.sum(1) / n
        top = h.masked_fill(~mask.unsqueeze(-1), float("-inf")).amax(1)
        pred = self.head(torch.cat([mean, top], -1)).squeeze(-1)
        return F.l1_loss(pred, target), pred


def get_inputs():
    B, N = 10, 29
    n = torch.tensor([29, 23, 18, 27, 12, 25, 20, 29, 15, 22])
    valid = torch.arange(N)[None] < n[:, None]
    atoms = torch.where(valid, torch.randint(0, 21, (B, N)), torch.full((B, N), -1))
    bonds = torch.randint(1, 5, (B, N, N)) * (torch.rand(B, N, N) < 0.12)
    chain = torch.arange(N)[None, :] - torch.arange(N)[:, None] == 1
    bonds = torch.where(chain[None], torch.ones_like(bonds), bonds).triu(1)
    bonds = (bonds + bonds.transpose(1, 2)) * (valid[:, :, None] & valid[:, None, :])
    return [atoms, bonds, torch.randn(B)]


def get_init_inputs():
    return [21, 4, 80, 12, 5, 4]
