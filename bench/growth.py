"""How the work of each stage of compiling grows with the size of a graph: log-log slopes.

    python bench/growth.py [--only chain,layers] [--sizes 4] [--most 500]
    python bench/growth.py --equal [--only encoder,decoder,mlp,resnet] [--train]

The graphs are made without Dynamo (`growth_graphs.py`), and planned for a CPU in an empty cache;
no kernel is compiled. Processor seconds of the thread, and the largest memory of Python's objects
in a run of its own. torch's share is that of `make_fx`. A stage of ours whose slope exceeds 1.1 is
told, and the exit status is 1. Stages that take less than 50 ms at the largest size are left out:
their slopes are noise.
`--equal`: 48 equal layers against 12 through `fuse`, stage by stage, in an empty cache and then
from it; processor seconds of the thread there, too: waits for compilers do not count.
"""
from __future__ import annotations

import argparse
import gc
import math
import sys
import tempfile
import time
import tracemalloc
from collections import Counter
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import nn

import torchweld
from growth_graphs import CASES, captured
from torchweld import pipeline
from torchweld.capture.captured import Captured
from torchweld.core import stages
from torchweld.core.garbage import no_garbage_collection
from torchweld.core.options import Options
from torchweld.runtime.cache import open_cache
from torchweld.runtime.load import Compilers

BOUND = 1.1
LEAST_S = 0.05


def mlp(width: int = 64) -> nn.Module:
    """Linear, LayerNorm, GELU."""
    return nn.Sequential(nn.Linear(width, width), nn.LayerNorm(width), nn.GELU())


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
    "mlp": (mlp, (8, 64)),
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
    start = time.thread_time()
    try:
        with torch.set_grad_enabled(train), tempfile.TemporaryDirectory() as empty:
            result = torchweld.fuse(model, cache_dir=cache or empty, calibrate="off")(x)
            if train:
                result.sum().backward()
    finally:
        pipeline._Stages.__call__ = kept
    seconds: Counter[str] = Counter()
    for found in graphs.values():
        seconds.update(found)
    return {**seconds, "whole": time.thread_time() - start}


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


class _NoCompilers(Compilers):
    """Every kernel has a function at once: the program is not called."""

    def start(self, bundle) -> None:
        pass

    def functions(self, bundles, record=None) -> dict:
        return {source: 1 for bundle in bundles.values() for source in bundle.sources}


def planned(graph: Captured) -> dict[str, float]:
    """Processor seconds of each of our stages, "bind" what a first call prepares."""
    with tempfile.TemporaryDirectory() as cache, no_garbage_collection():
        options = Options(cache_dir=cache, calibrate="off")
        job = pipeline._Job.of(graph, options)
        with _NoCompilers(open_cache(Options()), 1) as compilers:
            program = pipeline._compiled(job, compilers)
            given = graph.module.graph.find_nodes(op="placeholder")
            args = [torch.empty(tuple(n.meta["val"].shape)) for n in given]
            job.stages("bind", program.sizes, args)
    return job.stages.seconds


def planned_from_memory(graph: Captured) -> dict[str, float]:
    """The same with cold caches. A small graph that is still in them takes up to a sixth less for
    each node, which is a slope of 1.15 where every node takes as many steps."""
    torch.zeros(1 << 25).add_(1)  # 128 MB
    return planned(graph)


def measured(name: str, size: int) -> dict[str, float]:
    """Seconds by stage, torch's, and "MB", the most that ours take."""
    start = time.thread_time()
    graph = captured(name, size)
    torch_s = time.thread_time() - start
    one, other = planned_from_memory(graph), planned_from_memory(graph)
    seconds = {"torch": torch_s} | {stage: min(one[stage], other[stage]) for stage in one}
    gc.collect()
    tracemalloc.start()
    planned(graph)
    seconds["MB"] = tracemalloc.get_traced_memory()[1] / 1e6
    tracemalloc.stop()
    return seconds


def measure(name: str, count: int, most: int | None) -> bool:
    """Prints a table; whether all of our stages stay below the bound."""
    largest = min(CASES[name][1], most or CASES[name][1])
    sizes = [largest >> k for k in reversed(range(count))]
    rows = [measured(name, n) for n in sizes]
    for row in rows:
        row["all of ours"] = sum(s for stage, s in row.items() if stage not in ("torch", "MB"))
    print(f"{name}: {sizes}")
    holds = True
    for stage in rows[-1]:
        found = [row.get(stage, 0.0) for row in rows]
        if found[-1] >= LEAST_S:
            grows = slope(sizes, found)
            over = stage != "torch" and grows > BOUND
            holds = holds and not over
            values = " ".join(f"{s:8.3f}" for s in found)
            print(f"  {stage:22} {values}   slope {grows:.2f}{' OVER' * over}", flush=True)
    return holds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", help="cases, by comma")
    parser.add_argument("--sizes", type=int, default=4, help="how many, each twice the one before")
    parser.add_argument("--equal", action="store_true", help="48 equal layers against 12")
    parser.add_argument("--train", action="store_true", help="with the backward, if --equal")
    parser.add_argument("--most", type=int, help="the largest size, if less than the case's own")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    names = asked.only.split(",") if asked.only else list(EQUAL if asked.equal else CASES)
    stages.time = SimpleNamespace(perf_counter=time.thread_time)  # others' work does not count
    if asked.equal:
        stage_seconds(mlp(), torch.randn(8, 64))  # what every program needs
        for name in names:
            measure_equal(name, asked.train)
        return
    planned(captured("chain", 4))
    held = [measure(name, asked.sizes, asked.most) for name in names]
    sys.exit(not all(held))


if __name__ == "__main__":
    main()
