import math
from typing import NamedTuple

import torch
import torch.nn as nn
import torch.nn.functional as F


class Prediction(NamedTuple):
    probability: torch.Tensor
    loss: torch.Tensor
    importance: torch.Tensor


class GatedLinearLayer(nn.Module):
    """Gated linear network: fixed half-spaces of the side information choose each neuron's weights, which mix
    the logits of the layer before geometrically; every neuron has its own local loss."""

    def __init__(self, inputs, neurons, side, context_bits, eps=0.01):
        super().__init__()
        hyper = torch.randn(neurons, context_bits, side)
        self.register_buffer("hyper", hyper / hyper.norm(dim=-1, keepdim=True))
        self.register_buffer("offset", torch.randn(neurons, context_bits) * 0.5)
        self.register_buffer("powers", 2 ** torch.arange(context_bits))
        self.weight = nn.Parameter(torch.full((neurons, 2 ** context_bits, inputs), 1.0 / inputs) + 0.05 * torch.randn(neurons, 2 ** context_bits, inputs))
        self.bias = nn.Parameter(torch.tensor(math.e / (1 + math.e)).repeat(neurons))
        self.clip = math.log((1 - eps) / eps)

    def forward(self, logits, side):
        bits = torch.einsum("nks,bs->bnk", self.hyper, side) > self.offset
        context = (bits.long() * self.powers).sum(-1)
        n = torch.arange(self.weight.size(0), device=side.device)
        w = self.weight[n, context]
        out = torch.einsum("bni,bi->bn", w, logits).clamp(-self.clip, self.clip)
        return out + 0.1 * self.bias


class ObliviousTrees(nn.Module):
    """Soft oblivious trees: one feature mixture and one threshold a level, responses over all leaves."""

    def __init__(self, features, trees, depth, out):
        super().__init__()
        self.select = nn.Parameter(torch.randn(features, trees, depth))
        self.threshold = nn.Parameter(torch.randn(trees, depth) * 0.5)
        self.log_temp = nn.Parameter(torch.zeros(trees, depth))
        self.response = nn.Parameter(torch.randn(trees, out, 2 ** depth) * 0.3)
        code = torch.arange(2 ** depth)[None] // 2 ** torch.arange(depth)[:, None] % 2
        self.register_buffer("code", torch.stack([code, 1 - code], -1).float())

    def forward(self, x):
        chosen = torch.einsum("bf,ftd->btd", x, self.select.softmax(0))
        z = (chosen - self.threshold) * torch.exp(-self.log_temp)
        step = (0.5 * z + 0.5).clamp(0, 1)
        step = step * step * (3 - 2 * step)
        both = torch.stack([step, 1 - step], dim=-1)
        leaves = torch.einsum("btds,dcs->btdc", both, self.code).prod(dim=2)
        return torch.einsum("btc,toc->bto", leaves, self.response).flatten(1)


class Model(nn.Module):
    """Tabular classifier: quantile-piecewise encoding of numbers, one-hot sums of categories, densely connected
    oblivious trees, a gated linear network on their squashed outputs, with a gradient-free context."""

    def __init__(self, numeric, bins, categories, trees, depth, layers, neurons, bits):
        super().__init__()
        self.register_buffer("edges", torch.linspace(-2, 2, bins + 1).repeat(numeric, 1) + 0.1 * torch.randn(numeric, 1))
        self.cat = nn.ModuleList([nn.Embedding(n, 6) for n in categories])
        self.norm = nn.BatchNorm1d(numeric)
        width = numeric * bins + 6 * len(categories)
        self.trees = nn.ModuleList()
        for _ in range(layers):
            self.trees.append(ObliviousTrees(width, trees, depth, 2))
            width += trees * 2
        side = numeric + 6 * len(categories)
        sizes = [trees * 2 * layers] + neurons
        self.gln = nn.ModuleList([GatedLinearLayer(a, b, side, bits) for a, b in zip(sizes[:-1], sizes[1:])])
        self.final = nn.Linear(neurons[-1], 1)

    def encode(self, x):
        lo, hi = self.edges[:, :-1], self.edges[:, 1:]
        return ((x.unsqueeze(-1) - lo) / (hi - lo)).clamp(0, 1).flatten(1)

    def forward(self, x, cats, y):
        missing = torch.isnan(x)
        x = self.norm(torch.where(missing, torch.zeros_like(x), x))
        c = torch.cat([e(cats[:, i]) for i, e in enumerate(self.cat)], -1)
        h = torch.cat([self.encode(x), c], -1)
        made = []
        for layer in self.trees:
            made.append(layer(h))
            h = torch.cat([h, made[-1]], -1)
        z = torch.cat(made, -1)
        side = torch.cat([x, c], -1).detach()
        local = 0
        for layer in self.gln:
            z = layer(z, side)
            local = local + F.binary_cross_entropy_with_logits(z, y.unsqueeze(1).expand_as(z))
        logit = self.final(z).squeeze(1)
        p = torch.sigmoid(logit)
        focal = ((1 - torch.where(y > 0.5, p, 1 - p)) ** 1.5 * F.binary_cross_entropy_with_logits(logit, y, reduction="none")).mean()
        importance = self.trees[0].select.softmax(0).pow(2).sum((1, 2))
        return Prediction(p, focal + 0.1 * local, importance)


def get_inputs():
    x = torch.randn(53, 11)
    x[torch.rand(53, 11) < 0.1] = float("nan")
    return [x, torch.stack([torch.randint(0, n, (53,)) for n in (5, 9, 3)], 1), (torch.rand(53) < 0.4).float()]


def get_init_inputs():
    return [11, 7, [5, 9, 3], 26, 4, 2, [44, 20], 4]
