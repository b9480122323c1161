"""Sums by index on a GPU: seconds of eager, torch.compile and torchweld, by how many indices meet.

    python bench/sums_by_index.py [function ...]

The rates of atomics in templates/pointwise_reduce/price.py are priors; this is to measure them.
"""

from __future__ import annotations

import sys

import torch
import torch.nn.functional as F
from triton.testing import do_bench

import torchweld

aten = torch.ops.aten
SIZES = [  # points, places, columns
    (32768, 4096, 128), (32768, 4096, 4), (65536, 5000, 256), (1 << 20, 1 << 17, 32),
    (1 << 20, 64, 32), (65536, 2, 256), (1 << 20, 1 << 20, 1), (65536, 60000, 64),
]  # fmt: skip


def by_atomics(x, at, zeros):
    return zeros.index_add(0, at, x * 2)


def in_order(x, at, zeros):
    return aten.index_put(torch.zeros_like(zeros), [at], x * 2, True)


def of_an_embedding(x, at, zeros):
    return aten.embedding_dense_backward(x * 2, at, zeros.shape[0], -1, False)


def of_two_indices(x, at, zeros):
    pairs = torch.zeros_like(zeros).unflatten(0, (-1, 2))
    return aten.index_put(pairs, [at // 2, at % 2], x * 2, True)


def of_bags(x, at, zeros):
    gradient = (x[: len(x) // 8] * 2).unsqueeze(1).expand(-1, 8, -1)
    return aten.embedding_dense_backward(gradient, at.view(-1, 8), zeros.shape[0], -1, False)


def means(x, at, zeros):
    return zeros.scatter_reduce(0, at[:, None].expand_as(x), x * 2, "mean", include_self=False)


def one_of_each_row(x, at, zeros):
    rows, labels = torch.arange(len(zeros), device=x.device), at[: len(zeros)] % zeros.shape[1]
    return aten.index_put(torch.zeros_like(zeros), [rows, labels], x[: len(zeros), 0], True)


def read_by_ones(x, at, zeros):
    return F.one_hot(at, len(zeros)).to(x.dtype) @ x[: len(zeros)]


def added_by_ones(x, at, zeros):
    return F.one_hot(at, len(zeros)).to(x.dtype).t() @ x


FUNCTIONS = {
    **dict.fromkeys((by_atomics, in_order, of_an_embedding, of_two_indices, of_bags, means), SIZES),
    **dict.fromkeys((one_of_each_row, read_by_ones, added_by_ones), SIZES[:3]),
}


def microseconds(function, args) -> float:
    with torch.no_grad():
        return 1e3 * do_bench(lambda: function(*args), return_mode="median")


def main() -> None:
    print("function points places columns dtype skewed | eager compile torchweld (us)")
    asked = sys.argv[1:]
    for function in (f for f in FUNCTIONS if not asked or f.__name__ in asked):
        for points, places, columns in FUNCTIONS[function]:
            for dtype, skewed in ((torch.float32, 0), (torch.bfloat16, 0), (torch.bfloat16, 1)):
                torch.compiler.reset()
                x = torch.randn(points, columns, device="cuda").to(dtype)
                at = torch.randint(0, places, (points,), device="cuda")
                at[: points // 2 * skewed] = 0
                args = x, at, torch.zeros(places, columns, device="cuda", dtype=dtype)
                ways = function, torch.compile(function), torchweld.fuse(function)
                times = [f"{microseconds(way, args):.1f}" for way in ways]
                print(function.__name__, points, places, columns, dtype, skewed, "|", *times,
                      flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
