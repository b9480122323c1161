"""How the seconds of each stage of compiling grow with the size of a graph: log-log slopes.

    python bench/growth.py [--only chain,outputs,layers,unequal] [--sizes 4]
    python bench/growth.py --equal [--only encoder,decoder,mlp,resnet] [--train]

Capture is torch's; what is ours should have a slope of at most 1.1. Each size is compiled in an
empty cache, on one thread; stages that take less than 20 ms at the largest size are left out.
`--equal`: 48 equal layers against 12, stage by stage, in an empty cache and then from it.
"""
from __future__ import annotations

import argparse
import math
import tempfile
import time
from collections import Counter
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import nn

import torchweld
from torchweld import pipeline

LEAST_S = 0.02


class Chain(nn.Module):
    """`length` pointwise operations, each of which reads the one before."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.length = length

    def forward(self, x):
        for k in range(self.length):
            x = (x.sin(), x * 1.001, x + 0.5)[k % 3]
        return x


class Outputs(nn.Module):
    """`count` results, two operations each."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count

    def forward(self, x):
        return [(x * (k + 1)).sin() for k in range(self.count)]


def layers(count: int, unequal: bool = False):
    """Linear, LayerNorm, GELU; of widths that differ if they are `unequal`."""
    widths = [64 + (k if unequal else 0) for k in range(count + 1)]
    pairs = pairwise(widths)
    return nn.Sequential(
        *(nn.Sequential(nn.Linear(a, b), nn.LayerNorm(b), nn.GELU()) for a, b in pairs)
    )


CASES = {
    "chain": (lambda n: (Chain(n), torch.randn(64, 32)), 5000),
    "outputs": (lambda n: (Outputs(n), torch.randn(64, 32)), 200),
    "layers": (lambda n: (layers(n), torch.randn(8, 64)), 1000),
    "unequal": (lambda n: (layers(n, unequal=True), torch.randn(8, 64)), 96),
}


class Attention(nn.Module):
    """Products for queries, keys, values and the result."""

    def __init__(self, width: int = 64, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.parts = nn.ModuleList(nn.Linear(width, width) for _ in range(4))

    def forward(self, x, causal: bool = False):
        query, key, value, out = self.parts
        split = (m(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for m in (query, key, value))
        found = F.scaled_dot_product_attention(*split, is_causal=causal)
        return out(found.transpose(1, 2).flatten(2))


class Encoder(nn.Module):
    """A layer of BERT: norms behind the sums."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.attention, self.norms = Attention(width), nn.ModuleList(map(nn.LayerNorm, [width] * 2))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        x = self.norms[0](x + self.attention(x))
        return self.norms[1](x + self.down(F.gelu(self.up(x))))


class Decoder(nn.Module):
    """A layer of Llama: norms before, gated products."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.attention, self.norms = Attention(width), nn.ModuleList(map(nn.RMSNorm, [width] * 2))
        self.gate, self.up = nn.Linear(width, 2 * width), nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x):
        x = x + self.attention(self.norms[0](x), causal=True)
        y = self.norms[1](x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Block(nn.Module):
    """Of ResNet: two convolutions and their norms."""

    def __init__(self, channels: int = 16) -> None:
        super().__init__()
        sides = range(2)
        self.convolutions = nn.ModuleList(
            nn.Conv2d(channels, channels, 3, padding=1, bias=False) for _ in sides
        )
        self.norms = nn.ModuleList(nn.BatchNorm2d(channels) for _ in sides)

    def forward(self, x):
        y = torch.relu(self.norms[0](self.convolutions[0](x)))
        return torch.relu(x + self.norms[1](self.convolutions[1](y)))


EQUAL = {
    "encoder": (Encoder, (2, 16, 64)),
    "decoder": (Decoder, (2, 16, 64)),
    "mlp": (lambda: layers(1), (8, 64)),
    "resnet": (Block, (2, 16, 16, 16)),
}


def stage_seconds(
    model: nn.Module, x: torch.Tensor, cache: str | None = None, train: bool = False
) -> dict[str, float]:
    """Of the first call, by stage; "whole" is all of it, with the backward if it is to `train`.
    `cache`: the directory of kernels and plans, an empty one if None."""
    graphs: dict[int, dict[str, float]] = {}
    kept = pipeline._Stages.__call__

    def call(self, name, *args, **kwargs):
        result = kept(self, name, *args, **kwargs)
        graphs[id(self.seconds)] = self.seconds
        return result

    pipeline._Stages.__call__ = call
    torch._dynamo.reset()
    start = time.perf_counter()
    try:
        with torch.set_grad_enabled(train), tempfile.TemporaryDirectory() as empty:
            found = torchweld.fuse(model, cache_dir=cache or empty, calibrate="off")(x)
            if train:
                found.sum().backward()
    finally:
        pipeline._Stages.__call__ = kept
    seconds: Counter[str] = Counter()
    for stages in graphs.values():
        seconds.update(stages)
    return {**seconds, "whole": time.perf_counter() - start}


def measure_equal(name: str, train: bool, counts: tuple[int, int] = (12, 48)) -> None:
    make, shape = EQUAL[name]
    rows: dict[str, list[dict[str, float]]] = {"cold": [], "warm": []}
    for count in counts:
        model = nn.Sequential(*(make() for _ in range(count))).train(train)
        with tempfile.TemporaryDirectory() as cache:
            for seconds in rows.values():
                seconds.append(stage_seconds(model, torch.randn(shape), cache, train))
    for warmth, found in rows.items():
        print(f"{name}, {'training' if train else 'inference'}, {warmth}: {counts}")
        for row in found:
            ours = (s for stage, s in row.items() if stage not in ("capture", "whole"))
            row["after capture"] = sum(ours)
        for stage in found[-1]:
            few, many = (row.get(stage, 0.0) for row in found)
            if many >= LEAST_S or stage == "after capture":
                print(f"  {stage:22} {few:8.3f} {many:8.3f} s   {many / max(few, 1e-9):.2f} x")


def slope(sizes: list[int], seconds: list[float]) -> float:
    """Least squares of log seconds over log size."""
    xs, ys = ([math.log(max(v, 1e-9)) for v in values] for values in (sizes, seconds))
    x, y = sum(xs) / len(xs), sum(ys) / len(ys)
    return sum((a - x) * (b - y) for a, b in zip(xs, ys)) / sum((a - x) ** 2 for a in xs)


def measure(name: str, count: int, most: int | None) -> None:
    make, largest = CASES[name]
    largest = min(largest, most or largest)
    sizes = [largest >> k for k in reversed(range(count))]
    rows = [stage_seconds(*make(n)) for n in sizes]
    print(f"{name}: {sizes}")
    for stage in rows[-1]:
        found = [row.get(stage, 0.0) for row in rows]
        if found[-1] >= LEAST_S:
            times = " ".join(f"{s:8.3f}" for s in found)
            print(f"  {stage:22} {times} s   slope {slope(sizes, found):.2f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", help="cases, by comma")
    parser.add_argument("--sizes", type=int, default=4, help="how many, each twice the one before")
    parser.add_argument("--equal", action="store_true", help="48 equal layers against 12")
    parser.add_argument("--train", action="store_true", help="with the backward, if --equal")
    parser.add_argument("--most", type=int, help="the largest size, if less than the case's own")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    stage_seconds(*CASES["chain"][0](4))  # what every program needs
    for name in asked.only.split(",") if asked.only else EQUAL if asked.equal else CASES:
        if asked.equal:
            measure_equal(name, asked.train)
        else:
            measure(name, asked.sizes, asked.most)


if __name__ == "__main__":
    main()
