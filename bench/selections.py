"""Elements of rows in order, and places among such: us of eager, torch.compile and torchweld.

Medians, in inference.

    python bench/selections.py [cpu | cuda] [PART_OF_A_NAME]

On a GPU calls are replayed in a CUDA graph, so that what is timed is the kernels.
"""

from __future__ import annotations

import sys
import time
from statistics import median

import torch

import torchweld

WAYS = ("eager", "torch.compile", "torchweld")
ROUNDS = 30


def top(k: int):
    return lambda x: x.topk(k, -1)


def routed(x, w):
    weights, experts = (x @ w).softmax(-1).topk(8, -1)
    return weights / weights.sum(-1, keepdim=True), experts


def routed_by_bias(x, w):
    scores = (x @ w).float().sigmoid()
    experts = (scores + 0.1 * scores.mean(0)).topk(8, -1)[1]
    return scores.gather(-1, experts), experts


def nearest(x, w):
    return torch.cdist(x.float(), w.float().t()[:512]).topk(9, largest=False)


def bins(x, w):
    return torch.bucketize(x, w[0].sort()[0])


def between(x, w):
    """The second samples along NeRF's rays."""
    ordered = w.sigmoid().cumsum(-1)
    above = torch.searchsorted(ordered, x.abs() * 16).clamp(1, 62)
    low, high = ordered.gather(-1, above - 1), ordered.gather(-1, above)
    return low + (x - low) / (high - low)


CASES = [
    *((f"top {k} of {n}", top(k), ((rows, n),))
      for rows, n, k in ((8192, 64, 2), (8192, 64, 8), (8192, 256, 8), (8192, 64, 32),
                         (8192, 1024, 8), (2048, 2048, 20), (64, 4096, 8), (8, 16384, 4))),
    ("median of 9", lambda x: x.median(-1)[0], ((500_000, 9),)),
    ("sort of 64", lambda x: x.sort(-1)[0], ((8192, 64),)),
    ("argsort of 200", lambda x: x.argsort(dim=-1, stable=True), ((4096, 200),)),
    ("sort of 500", lambda x: x.sort(-1)[0], ((2048, 500),)),
    ("sort of 2000", lambda x: x.sort(-1)[0], ((512, 2000),)),
    ("sort of 30 columns", lambda x: x.sort(1)[0], ((64, 30, 500),)),
    ("64 experts of tokens", routed, ((8192, 512), (512, 64))),
    ("256 experts, by a bias", routed_by_bias, ((8192, 512), (512, 256))),
    ("bins of 255", bins, ((4096, 1024), (1, 255))),
    ("between 63 of", between, ((8192, 128), (8192, 63))),
    ("nearest of 512 points", nearest, ((4096, 3), (3, 512))),
]  # fmt: skip


def seconds(way, args) -> float:
    """Of one call, on a CPU."""
    begun = time.perf_counter()
    way(*args)
    return time.perf_counter() - begun


def microseconds(ways, args) -> list[float]:
    """Of each way; on a CPU in turns."""
    for way in ways:
        way(*args), way(*args), way(*args)
    if args[0].is_cuda:
        from triton.testing import do_bench_cudagraph  # comes with CUDA builds

        return [1e3 * do_bench_cudagraph(lambda w=way: w(*args), rep=20) for way in ways]
    rounds = [[seconds(way, args) for way in ways] for _ in range(ROUNDS)]
    return [1e6 * median(times) for times in zip(*rounds)]


def main(device: str = "cpu", names: str = "") -> None:
    print(f"| rows | dtype | {' | '.join(WAYS)} |\n|---|---|---|---|---|")
    for name, function, shapes in (case for case in CASES if names in case[0]):
        for dtype in (torch.float32, torch.bfloat16):
            torch.compiler.reset()
            args = [torch.randn(shape, device=device).to(dtype) for shape in shapes]
            fused = torchweld.fuse(function, cuda_graphs=False)
            found = microseconds((function, torch.compile(function), fused), args)
            numbers = " | ".join(f"{n:.1f}" for n in found)
            print(f"| {name} x {shapes[0][0]} | {str(dtype)[6:]} | {numbers} |", flush=True)


if __name__ == "__main__":
    torch.manual_seed(0)
    with torch.no_grad():
        main(*sys.argv[1:])
