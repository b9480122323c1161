import torch
import torch.nn as nn
import torch.nn.functional as F


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.ln1, self.ln2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(approximate="tanh"), nn.Linear(4 * dim, dim))

    def forward(self, x, pos):
        B, T, C = x.shape
        q, k, v = self.qkv(self.ln1(x)).split(C, dim=2)
        q, k, v = (t.view(B, T, self.heads, C // self.heads).transpose(1, 2) for t in (q, k, v))
        # causality by original positions of the routed tokens
        mask = pos.unsqueeze(-1) >= pos.unsqueeze(-2)
        att = (q @ k.transpose(-2, -1)) / (q.size(-1) ** 0.5)
        att = att.masked_fill(mask.unsqueeze(1).logical_not(), float("-inf"))
        y = (F.softmax(att, dim=-1) @ v).transpose(1, 2).contiguous().view(B, T, C)
        h = self.proj(y)
        return h + self.mlp(self.ln2(x + h))


class Model(nn.Module):
    """Mixture-of-depths stack: top-k tokens per layer go through the block, the rest skip."""

    def __init__(self, dim, heads, layers, capacity):
        super().__init__()
        self.capacity = capacity
        self.blocks = nn.ModuleList(Block(dim, heads) for _ in range(layers))
        self.routers = nn.ModuleList(nn.Linear(dim, 1, bias=False) for _ in range(layers))
        self.predictors = nn.ModuleList(
            nn.Sequential(nn.Linear(dim, dim // 2), nn.SiLU(), nn.Linear(dim // 2, 1)) for _ in range(layers))

    def forward(self, x):
        B, S, D = x.shape
        k = int(S * self.capacity)
        aux = x.new_zeros(())
        for block, router, pred in zip(self.blocks, self.routers, self.predictors):
            logits = router(x).squeeze(-1)
            weights, idx = torch.topk(logits, k, dim=1, sorted=False)
            idx, order = torch.sort(idx, dim=1)
            weights = torch.gather(weights, 1, order)
            gidx = idx.unsqueeze(-1).expand(-1, -1, D)
            picked = torch.gather(x, 1, gidx)
            out = block(picked, idx) * torch.sigmoid(weights).unsqueeze(-1)
            # auxiliary predictor for causal sampling
            target = torch.zeros_like(logits)
            target.scatter_(1, idx, 1.0)
            aux = aux + F.binary_cross_entropy_with_logits(pred(x.detach()).squeeze(-1), target)
            x = x.scatter_add(1, gidx, out)
        return x, aux / len(self.blocks)


def get_inputs():
    return [torch.randn(2, 50, 48)]


def get_init_inputs():
    return [48, 4, 3, 0.25]
