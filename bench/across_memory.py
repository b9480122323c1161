"""Reductions over the channels of images, whose memory runs across them, on a GPU: us of eager,
torch.compile and torchweld, in float32 and bfloat16.

    python bench/across_memory.py [NAMES]

24 million elements, inference, medians of paired runs; calls follow each other at once.
"""

from __future__ import annotations

import sys
from functools import partial

import torch
import torch.nn.functional as F

import torchweld
from torchweld.observe.measure.paired import time_paired

POINTS, SECONDS = 24_000_000, 0.1


def norm_last(x, y, w):
    return F.layer_norm(x.permute(0, 2, 3, 1), w.shape, w, w)


def norm_first(x, y, w):
    return norm_last(x, y, w).permute(0, 3, 1, 2).contiguous()


def norm_and_rows(x, y, w):
    return norm_last(x, y, w) + y.view(x.permute(0, 2, 3, 1).shape)


def turned_norm(x, y, w):
    y = y.view(x.permute(0, 2, 3, 1).shape)
    return F.layer_norm(y, w.shape, w, w).permute(0, 3, 1, 2).contiguous()


def softmax(x, y, w):
    return x.softmax(1)


def weighted_log_softmax(x, y, w):
    return (x.log_softmax(1) * w[:, None, None]).sum(1)


def divergence(x, y, w):
    p = x.log_softmax(1)
    return (p.exp() * (p - y.log_softmax(1))).sum(1)


def variance(x, y, w):
    return x.var(1)


def extremes(x, y, w):
    return x.argmax(1), x.amax(1)


FUNCTIONS = (norm_last, norm_first, norm_and_rows, turned_norm, softmax, weighted_log_softmax,
             divergence, variance, extremes)  # fmt: skip
SHAPES = ((48, 64, 64), (96, 56, 56), (69, 97, 211), (200, 33, 33), (256, 28, 28), (384, 14, 14),
          (768, 14, 14))  # fmt: skip


def microseconds(function, args: list[torch.Tensor]) -> list[float]:
    """Of eager, torch.compile and torchweld."""
    ways = {"eager": function, "torch.compile": torch.compile(function),
            "torchweld": torchweld.fuse(function)}  # fmt: skip
    calls = {name: partial(way, *args) for name, way in ways.items()}
    for call in [*calls.values()] * 3:
        call()
    paired = time_paired(calls, args[0].device.type, SECONDS)
    return [1e3 * paired.median_ms(name) for name in ways]


def main(names: list[str]) -> None:
    print("| function | channels, image | dtype | eager | torch.compile | torchweld |")
    print("|---|---|---|---|---|---|")
    for function in (f for f in FUNCTIONS if not names or f.__name__ in names):
        for shape in SHAPES:
            for dtype in (torch.float32, torch.bfloat16):
                images = POINTS // torch.Size(shape).numel()
                made = (torch.randn(images, *shape, device="cuda", dtype=dtype) for _ in range(2))
                args = [*made, torch.rand(shape[0], device="cuda", dtype=dtype)]
                torch.compiler.reset()
                found = " | ".join(f"{us:.1f}" for us in microseconds(function, args))
                size = " x ".join(map(str, shape))
                print(f"| {function.__name__} | {size} | {str(dtype)[6:]} | {found} |", flush=True)


if __name__ == "__main__":
    with torch.no_grad():
        main(sys.argv[1:])
