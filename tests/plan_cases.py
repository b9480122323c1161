"""Targets for `torchweld plan`: functions that return (model, example inputs) without data."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

_HEAD = 64


class Geglu(nn.Module):
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.gate, self.up = (nn.Linear(width, hidden, bias=False) for _ in range(2))
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x):
        return self.down(F.gelu(self.gate(x), approximate="tanh") * self.up(x))


class Attention(nn.Module):
    """Queries, keys and values apart, then torch's attention or one written out."""

    def __init__(self, width: int, by_hand: bool = False) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))
        self.by_hand = by_hand

    def forward(self, x):
        q, k, v = _heads(self.q(x)), _heads(self.k(x)), _heads(self.v(x))
        if self.by_hand:
            scores = q @ k.transpose(-1, -2) / _HEAD**0.5
            y = scores.softmax(-1) @ v
        else:
            y = F.scaled_dot_product_attention(q, k, v)
        return self.out(y.transpose(1, 2).flatten(2))


def _heads(x):
    return x.unflatten(-1, (-1, _HEAD)).transpose(1, 2)


class EncoderLayer(nn.Module):
    """BERT's."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.attention = Attention(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))

    def forward(self, x):
        x = self.norms[0](x + self.attention(x))
        return self.norms[1](x + self.down(F.gelu(self.up(x))))


def _in_bfloat16(make, *shape: int):
    with torch.device("meta"):
        return make().to(torch.bfloat16), torch.empty(shape, dtype=torch.bfloat16)


def geglu():
    return _in_bfloat16(lambda: Geglu(768, 3072), 64, 128, 768)


def encoder_layer():
    return _in_bfloat16(lambda: EncoderLayer(768), 32, 128, 768)


class Pools(nn.Module):
    """One of each, of images that are computed."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.empty(16, 1, 1))

    def forward(self, x):
        x = x * self.scale
        maxima = F.max_pool2d(x.sin(), 3, 2, 1).mean() + F.max_pool1d(x.flatten(2).cos(), 4).mean()
        means = F.avg_pool2d(x.exp(), 3, 2, 1, count_include_pad=False).mean()
        means = means + F.adaptive_avg_pool2d(x, 4).square().mean()
        return maxima + means + F.unfold(x, 3, padding=1).square().mean()


def pools():
    with torch.device("meta"):
        return Pools(), torch.empty(8, 16, 64, 64)


def small_mlp():
    def made():
        layers = [layer for _ in range(4) for layer in (nn.Linear(64, 64), nn.ReLU())]
        return nn.Sequential(*layers[:-1])

    return _in_bfloat16(made, 1 << 18, 64)


class InvertedResidual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        wide = 4 * channels
        self.layers = nn.Sequential(
            nn.Conv2d(channels, wide, 1, bias=False), nn.BatchNorm2d(wide), nn.GELU(),
            nn.Conv2d(wide, wide, 3, padding=1, groups=wide, bias=False), nn.BatchNorm2d(wide),
            nn.GELU(), nn.Conv2d(wide, channels, 1, bias=False), nn.BatchNorm2d(channels),
        )  # fmt: skip

    def forward(self, x):
        return nn.functional.gelu(x + self.layers(x))


def inverted_residuals():
    return _in_bfloat16(lambda: nn.Sequential(*map(InvertedResidual, (64, 64))), 16, 64, 56, 56)


class OfChannels(nn.Module):
    """A layer on images whose channels lie first."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(384, 1536)

    def forward(self, x):
        return nn.functional.gelu(self.layer(x.sigmoid().flatten(2).transpose(1, 2)))


def channels_first():
    model, x = _in_bfloat16(OfChannels, 16, 384, 14, 14)
    return model.requires_grad_(False), x


class Bags(nn.Module):
    """Bags of 13 and of 8 rows. `others`: whose gradients a gather would not have."""

    def __init__(self) -> None:
        super().__init__()
        self.by_13 = nn.ModuleList(nn.EmbeddingBag(5003, 99, mode=m) for m in ("mean", "sum"))
        half = torch.bfloat16
        self.by_13.append(nn.EmbeddingBag(5003, 99, mode="sum", dtype=half))
        self.by_8 = nn.EmbeddingBag(5003, 99, dtype=half)
        self.others = nn.ModuleList([nn.EmbeddingBag(5003, 99, dtype=half),
                                     nn.EmbeddingBag(5003, 99, mode="max")])  # fmt: skip

    def forward(self, at):
        bags = [bag(at) for bag in (*self.by_13, *self.others)] + [self.by_8(at[:, :8])]
        return sum(x.float().sin().mean() for x in bags)


def bags():
    with torch.device("meta"):
        return Bags(), torch.empty(2047, 13, dtype=torch.int64)


def attention_by_hand():
    return _in_bfloat16(lambda: Attention(768, by_hand=True), 8, 512, 768)


def depends_on_values():
    class Model(nn.Module):
        def forward(self, x):
            return x[: int(x.sum())]

    return Model(), torch.ones(3)
