"""Sums by index on a GPU: seconds of eager, torch.compile and torchweld, by how many indices meet.

    python bench/sums_by_index.py

The rates of atomics in templates/pointwise_reduce/price.py are priors; this is to measure them.
"""

from __future__ import annotations

import torch
from triton.testing import do_bench

import torchweld

aten = torch.ops.aten
SIZES = [  # points, places, columns
    (32768, 4096, 128), (32768, 4096, 4), (65536, 5000, 256), (1 << 20, 1 << 17, 32),
    (1 << 20, 64, 32), (65536, 2, 256), (1 << 20, 1 << 20, 1),
]  # fmt: skip


def by_atomics(x, at, zeros):
    return zeros.index_add(0, at, x * 2)


def in_order(x, at, zeros):
    return aten.index_put(torch.zeros_like(zeros), [at], x * 2, True)


def of_an_embedding(x, at, zeros):
    return aten.embedding_dense_backward(x * 2, at, zeros.shape[0], -1, False)


def microseconds(function, args) -> float:
    with torch.no_grad():
        return 1e3 * do_bench(lambda: function(*args), return_mode="median")


def main() -> None:
    print("function points places columns dtype skewed | eager compile torchweld (us)")
    for function in (by_atomics, in_order, of_an_embedding):
        for points, places, columns in SIZES:
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
