"""Rows of thousands of columns on a GPU, bfloat16: us of eager, torch.compile and torchweld.

    python bench/wide_rows.py [columns ...]

40 million elements, inference, medians; the cache is emptied between calls.
"""

from __future__ import annotations

import sys

import torch
import torch.nn.functional as F
from triton.testing import do_bench

import torchweld

POINTS = 40 << 20
COLUMNS = (2560, 5120, 8192)


def layer_norm(x, r, w, b):
    return F.layer_norm(x, w.shape, w, b)


def add_layer_norm(x, r, w, b):
    return x + r, F.layer_norm(x + r, w.shape, w, b)


def rms_norm(x, r, w, b):
    return F.rms_norm(x, w.shape, w)


def layer_norm_gelu(x, r, w, b):
    return F.gelu(F.layer_norm(x, w.shape, w, b))


def softmax(x, r, w, b):
    return x.softmax(-1)


FUNCTIONS = (layer_norm, add_layer_norm, rms_norm, layer_norm_gelu, softmax)


def microseconds(function, args) -> float:
    function(*args), function(*args)
    return 1e3 * do_bench(lambda: function(*args), warmup=4, rep=15, return_mode="median")


def main(columns: list[int]) -> None:
    print("| columns | function | eager | torch.compile | torchweld |\n|---|---|---|---|---|")
    for count in columns or COLUMNS:
        shapes = (POINTS // count, count), (POINTS // count, count), (count,), (count,)
        args = [torch.randn(shape, device="cuda").bfloat16() for shape in shapes]
        for function in FUNCTIONS:
            torch.compiler.reset()
            ways = function, torch.compile(function), torchweld.fuse(function)
            found = " | ".join(f"{microseconds(way, args):.1f}" for way in ways)
            print(f"| {count} | {function.__name__} | {found} |", flush=True)


if __name__ == "__main__":
    with torch.no_grad():
        main([int(count) for count in sys.argv[1:]])
