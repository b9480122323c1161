from typing import List

import torch
from torch import nn
import torch.nn.functional as F


def mlp(sizes: List[int], last_act: bool) -> nn.Sequential:
    layers = []
    for i, (a, b) in enumerate(zip(sizes[:-1], sizes[1:])):
        layers.append(nn.Linear(a, b))
        if last_act or i < len(sizes) - 2:
            layers.append(nn.ReLU())
    return nn.Sequential(*layers)


class MultiTableBag(nn.Module):
    """All tables of the same width in one weight; fixed-length multi-hot bags with per-sample weights."""

    def __init__(self, rows: List[int], dim: int):
        super().__init__()
        self.dim = dim
        offsets = [0]
        for r in rows[:-1]:
            offsets.append(offsets[-1] + r)
        self.register_buffer("offsets", torch.tensor(offsets), persistent=False)
        self.register_buffer("rows", torch.tensor(rows), persistent=False)
        self.weight = nn.Parameter(torch.empty(sum(rows), dim).uniform_(-0.05, 0.05))

    def forward(self, ids, weights):
        # ids: (B, T, hot) raw hashes; -1 marks an empty slot
        B, T, hot = ids.shape
        valid = ids >= 0
        idx = torch.remainder(ids, self.rows[None, :, None]) + self.offsets[None, :, None]
        w = weights.masked_fill(~valid, 0.0).to(self.weight.dtype)
        out = F.embedding_bag(idx.view(B * T, hot), self.weight, mode="sum", per_sample_weights=w.view(B * T, hot))
        return out.view(B, T, self.dim)


class LowRankCross(nn.Module):
    """DCN-v2 mixture of low-rank experts: x0 * (U g(C g(V^T x))) + x, gated."""

    def __init__(self, dim: int, rank: int, n_experts: int, n_layers: int):
        super().__init__()
        self.n_layers, self.n_experts = n_layers, n_experts
        self.U = nn.ParameterList([nn.Parameter(torch.randn(n_experts, dim, rank) * dim ** -0.5) for _ in range(n_layers)])
        self.V = nn.ParameterList([nn.Parameter(torch.randn(n_experts, rank, dim) * dim ** -0.5) for _ in range(n_layers)])
        self.C = nn.ParameterList([nn.Parameter(torch.randn(n_experts, rank, rank) * rank ** -0.5) for _ in range(n_layers)])
        self.bias = nn.ParameterList([nn.Parameter(torch.zeros(dim)) for _ in range(n_layers)])
        self.gate = nn.ModuleList([nn.Linear(dim, n_experts, bias=False) for _ in range(n_layers)])

    def forward(self, x0):
        x = x0
        for l in range(self.n_layers):
            g = self.gate[l](x).softmax(-1)
            h = torch.tanh(torch.einsum("bd,erd->ber", x, self.V[l]))
            h = torch.tanh(torch.einsum("ber,esr->bes", h, self.C[l]))
            h = torch.einsum("bes,eds->bed", h, self.U[l])
            out = x0.unsqueeze(1) * (h + self.bias[l])
            x = torch.einsum("be,bed->bd", g, out) + x
        return x


class Model(nn.Module):
    def __init__(self, n_dense, rows, dim, bottom, top, rank, n_experts, n_cross):
        super().__init__()
        self.bottom = mlp([n_dense] + bottom + [dim], last_act=True)
        self.emb = MultiTableBag(rows, dim)
        n = len(rows) + 1
        li = [i for i in range(n) for _ in range(i)]
        lj = [j for i in range(n) for j in range(i)]
        self.register_buffer("li", torch.tensor(li), persistent=False)
        self.register_buffer("lj", torch.tensor(lj), persistent=False)
        self.cross = LowRankCross(n * dim, rank, n_experts, n_cross)
        self.cross_out = nn.Linear(n * dim, dim)
        self.top = mlp([len(li) + 2 * dim] + top + [1], last_act=False)

    def forward(self, dense, ids, weights, labels):
        x = torch.log1p(dense.clamp(min=0))
        x = self.bottom(x)
        emb = self.emb(ids, weights)
        feats = torch.cat([x.unsqueeze(1), emb], dim=1)          # B, n, D
        Z = torch.bmm(feats, feats.transpose(1, 2))
        pair = Z[:, self.li, self.lj]
        deep = self.cross_out(self.cross(feats.flatten(1)))
        logit = self.top(torch.cat([x, pair, deep], dim=1)).squeeze(1).float()
        loss = F.binary_cross_entropy_with_logits(logit, labels.float())
        return torch.sigmoid(logit), loss


def get_inputs():
    B, T, hot = 4096, 26, 4
    return [
        torch.randn(B, 13) * 3,
        torch.randint(-1, 1 << 30, (B, T, hot)),
        torch.rand(B, T, hot),
        torch.randint(0, 2, (B,)),
    ]


def get_init_inputs():
    rows = [200000, 40000, 100000, 1000, 60, 20, 10000, 600, 3, 90000, 5000, 200000, 3000,
            27, 10000, 150000, 11, 4000, 2000, 4, 180000, 18, 16, 60000, 100, 50000]
    return [13, rows, 128, [512, 256], [1024, 1024, 512, 256], 256, 2, 2]
