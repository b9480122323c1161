"""How the seconds of each stage of compiling grow with the size of a graph: log-log slopes.

    python bench/growth.py [--only chain,outputs,layers,unequal] [--sizes 4]

Capture is torch's; what is ours should have a slope of at most 1.1. Each size is compiled in an
empty cache, on one thread; stages that take less than 20 ms at the largest size are left out.
"""
from __future__ import annotations

import argparse
import math
import tempfile
import time
from itertools import pairwise

import torch
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


def stage_seconds(model: nn.Module, x: torch.Tensor) -> dict[str, float]:
    """Of the first call, by stage; "whole" is all of it."""
    seconds: dict[str, float] = {}
    kept = pipeline._Stages.__call__

    def call(self, name, *args, **kwargs):
        result = kept(self, name, *args, **kwargs)
        seconds.update(self.seconds)
        return result

    pipeline._Stages.__call__ = call
    torch._dynamo.reset()
    start = time.perf_counter()
    try:
        with torch.no_grad(), tempfile.TemporaryDirectory() as cache:
            torchweld.fuse(model, cache_dir=cache)(x)
    finally:
        pipeline._Stages.__call__ = kept
    return seconds | {"whole": time.perf_counter() - start}


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
    parser.add_argument("--only", default=",".join(CASES), help="cases, by comma")
    parser.add_argument("--sizes", type=int, default=4, help="how many, each twice the one before")
    parser.add_argument("--most", type=int, help="the largest size, if less than the case's own")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    stage_seconds(*CASES["chain"][0](4))  # what every program needs
    for name in asked.only.split(","):
        measure(name, asked.sizes, asked.most)


if __name__ == "__main__":
    main()
