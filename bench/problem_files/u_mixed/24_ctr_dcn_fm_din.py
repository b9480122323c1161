import torch
import torch.nn as nn
import torch.nn.functional as F


class Dice(nn.Module):
    def __init__(self, dim, eps=1e-8):
        super().__init__()
        self.bn = nn.BatchNorm1d(dim, eps=eps, affine=False)
        self.alpha = nn.Parameter(torch.zeros(dim))

    def forward(self, x):
        shape = x.shape
        x = x.reshape(-1, shape[-1])
        p = torch.sigmoid(self.bn(x))
        return (self.alpha * (1 - p) * x + p * x).view(shape)


class CrossNetMix(nn.Module):
    """DCN-V2 cross layers with a mixture of low-rank experts."""

    def __init__(self, dim, rank, experts, layers):
        super().__init__()
        self.layers = layers
        self.U = nn.Parameter(torch.randn(layers, experts, dim, rank) * dim ** -0.5)
        self.V = nn.Parameter(torch.randn(layers, experts, dim, rank) * dim ** -0.5)
        self.C = nn.Parameter(torch.randn(layers, experts, rank, rank) * rank ** -0.5)
        self.bias = nn.Parameter(torch.zeros(layers, dim))
        self.gating = nn.ModuleList(nn.Linear(dim, experts, bias=False) for _ in range(layers))

    def forward(self, x0):
        xl = x0
        for i in range(self.layers):
            v = torch.tanh(torch.einsum("bd,edr->ber", xl, self.V[i]))
            v = torch.tanh(torch.einsum("ber,ers->bes", v, self.C[i]))
            uv = torch.einsum("ber,edr->bed", v, self.U[i]) + self.bias[i]
            gate = self.gating[i](xl).softmax(-1)
            xl = torch.einsum("bed,be->bd", x0.unsqueeze(1) * uv, gate) + xl
        return xl


class Model(nn.Module):
    """CTR model: DCNv2 + FM + DIN target attention, shared hashed table with offsets and embedding bags."""

    def __init__(self, field_dims, n_items, n_tags, dim, n_dense):
        super().__init__()
        self.embedding = nn.Embedding(sum(field_dims), dim)
        self.linear = nn.Embedding(sum(field_dims), 1)
        off = torch.tensor([0] + field_dims[:-1]).cumsum(0)
        self.register_buffer("offsets", off)
        self.item = nn.Embedding(n_items, dim, padding_idx=0)
        self.tags = nn.EmbeddingBag(n_tags, dim, mode="mean")
        self.att = nn.Sequential(nn.Linear(4 * dim, 24), Dice(24), nn.Linear(24, 1))
        total = (len(field_dims) + 3) * dim + n_dense
        self.bn = nn.BatchNorm1d(n_dense)
        self.cross = CrossNetMix(total, 8, 3, 2)
        self.deep = nn.Sequential(nn.Linear(total, 48), nn.BatchNorm1d(48), nn.PReLU(48), nn.Linear(48, 16), nn.ReLU())
        self.out = nn.Linear(total + 16, 1)

    def forward(self, fields, dense, hist, target, tag_ids, tag_offsets, label):
        B, L = hist.shape
        idx = fields + self.offsets.unsqueeze(0)
        e = self.embedding(idx)
        t = self.item(target)
        h = self.item(hist)
        q = t.unsqueeze(1).expand(-1, L, -1)
        score = self.att(torch.cat([q, h, q - h, q * h], dim=-1)).squeeze(-1)
        mask = hist.ne(0)
        score = score.masked_fill(~mask, -1e9).softmax(-1) * mask.any(1, keepdim=True)
        interest = torch.bmm(score.unsqueeze(1), h).squeeze(1)
        tag = self.tags(tag_ids, tag_offsets)
        allv = torch.cat([e, t[:, None], interest[:, None], tag[:, None]], dim=1)
        fm = 0.5 * (allv.sum(1).pow(2) - allv.pow(2).sum(1)).sum(-1)
        x = torch.cat([allv.flatten(1), self.bn(torch.log1p(dense.abs()))], dim=1)
        logit = self.out(torch.cat([self.cross(x), self.deep(x)], dim=1)).squeeze(1)
        logit = logit + fm + self.linear(idx).sum(dim=(1, 2))
        loss = F.binary_cross_entropy_with_logits(logit, label, reduction="none")
        # pairwise ranking term inside the batch
        diff = logit.unsqueeze(1) - logit.unsqueeze(0)
        pair = (label.unsqueeze(1) > label.unsqueeze(0)).float()
        rank = (F.softplus(-diff) * pair).sum() / pair.sum().clamp(min=1)
        return torch.sigmoid(logit), loss.mean() + 0.2 * rank, score


def get_inputs():
    B, L = 45, 13
    dims = [17, 40, 9, 5]
    fields = torch.stack([torch.randint(0, d, (B,)) for d in dims], dim=1)
    hist = torch.randint(1, 200, (B, L)) * (torch.arange(L)[None] < torch.randint(0, L + 1, (B, 1)))
    tag_len = torch.randint(0, 4, (B,))
    tag_len[-1] += 180 - tag_len.sum()
    offsets = torch.cat([torch.zeros(1, dtype=torch.long), tag_len.cumsum(0)[:-1]])
    return [fields, torch.randn(B, 6), hist, torch.randint(1, 200, (B,)), torch.randint(0, 60, (180,)), offsets,
            (torch.rand(B) < 0.3).float()]


def get_init_inputs():
    return [[17, 40, 9, 5], 200, 60, 8, 6]
