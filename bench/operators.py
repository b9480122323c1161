"""Operators of `torchweld.ops` against eager, and against Liger Kernel where it is installed, on a
GPU if there is one: forward and backward, paired rounds, medians.

    python bench/operators.py [rows] [columns]
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F

from torchweld import ops

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
ROUNDS = 30


def cases(rows: int, columns: int) -> dict[str, tuple[Callable, Callable, list[torch.Tensor]]]:
    def made(*shape: int) -> torch.Tensor:
        return torch.randn(shape, device=DEVICE, dtype=torch.bfloat16, requires_grad=True)

    x, y, w = made(rows, columns), made(rows, columns), made(columns)
    labels = torch.randint(0, 8 * columns, (rows,), device=DEVICE)
    head = (made(8 * columns, columns).detach() * columns**-0.5).requires_grad_()
    q = made(2, 8, rows // 16, 64)
    return {
        "rms_norm": (ops.rms_norm, lambda x, w: F.rms_norm(x, w.shape, w, 1e-6), [x, w]),
        "add_rms_norm": (lambda x, y, w: ops.add_rms_norm(x, y, w)[0],
                         lambda x, y, w: F.rms_norm(x + y, w.shape, w, 1e-6), [x, y, w]),
        "swiglu": (ops.swiglu, lambda x, y: F.silu(x) * y, [x, y]),
        "attention": (lambda q: ops.attention(q, q, q, score="causal"),
                      lambda q: F.scaled_dot_product_attention(q, q, q, is_causal=True), [q]),
        "dropout_add": (lambda x, y: ops.dropout_add(x, y, 0.1),
                        lambda x, y: F.dropout(x, 0.1) + y, [x, y]),
        "linear_cross_entropy": (lambda x, h: ops.linear_cross_entropy(x, h, labels),
                                 lambda x, h: F.cross_entropy(F.linear(x, h).float(), labels),
                                 [x, head]),
    }  # fmt: skip


def liger() -> dict[str, Callable]:
    try:
        from liger_kernel.transformers import functional as theirs
    except ImportError:
        return {}
    return {
        "rms_norm": lambda x, w: theirs.liger_rms_norm(x, w, 1e-6),
        "swiglu": theirs.liger_swiglu,
    }


def seconds(function: Callable, inputs: list[torch.Tensor]) -> float:
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    result = function(*inputs)
    torch.autograd.grad(result, inputs, torch.ones_like(result))
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def main(rows: int = 4096, columns: int = 1024) -> None:
    others = liger()
    for name, (ours, eager, inputs) in cases(rows, columns).items():
        ways = {"torchweld": ours, "eager": eager}
        if name in others:
            ways["liger"] = others[name]
        for function in ways.values():
            seconds(function, inputs)
        rounds = [{w: seconds(f, inputs) for w, f in ways.items()} for _ in range(ROUNDS)]
        times = {w: statistics.median(r[w] for r in rounds) * 1e3 for w in ways}
        ratio = statistics.median(r["eager"] / r["torchweld"] for r in rounds)
        told = ", ".join(f"{w} {t:.3f} ms" for w, t in times.items())
        print(f"{name} {rows}x{columns}: {told}; eager / torchweld {ratio:.2f}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
