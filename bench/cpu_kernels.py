"""Memory-bound kernels on the CPU: torchweld against eager and torch.compile, paired in one
process.

python bench/cpu_kernels.py [--rounds 30] [--threads N] [--only NAME]

Each round times every way once, in turn; the table gives medians in milliseconds, the spread
(interquartile range over median) and the median over rounds of the paired ratios. Freed memory
stays with the process, as in a program that has run for a while: whether a fresh output of 25 MB
pays page faults (5 ms) would otherwise hang on the order of the ways. `--fault` leaves the
allocator alone.
"""

from __future__ import annotations

import argparse
import ctypes
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn import functional as F

import torchweld


@dataclass(frozen=True)
class Case:
    name: str
    run: Callable
    shapes: tuple[tuple[int, ...], ...]
    dtype: torch.dtype
    train: bool = False

    def inputs(self) -> list[torch.Tensor]:
        torch.manual_seed(0)
        return [torch.randn(s).to(self.dtype) for s in self.shapes]


class Function(torch.nn.Module):
    def __init__(self, run: Callable) -> None:
        super().__init__()
        self.run = run

    def forward(self, *args):
        return self.run(*args)


def gelu_mul(g, u):
    return F.gelu(g, approximate="tanh") * u


def add_layer_norm(x, r, w, b):
    return F.layer_norm(x + r, x.shape[-1:], w, b)


def add_rms_norm(x, r, w):
    return F.rms_norm(x + r, x.shape[-1:], w, 1e-6)


def masked_softmax(x, mask):
    return torch.softmax(x * 0.125 + mask, -1)


def layer_norm_backward(g, x, mean, rstd, w, b):
    return torch.ops.aten.native_layer_norm_backward(
        g, x, [x.shape[-1]], mean, rstd, w, b, [True] * 3
    )


def cases() -> list[Case]:
    found = []
    for dtype in (torch.float32, torch.bfloat16):
        wide, rows, row = (8192, 3072), (8192, 768), (768,)
        found += [
            Case("gelu(g)*u", gelu_mul, (wide, wide), dtype),
            Case("add+LayerNorm", add_layer_norm, (rows, rows, row, row), dtype),
            Case("add+RMSNorm", add_rms_norm, (rows, rows, row), dtype),
            Case("softmax(scale, mask)", masked_softmax, ((98304, 128), (98304, 128)), dtype),
            Case(
                "LayerNorm backward",
                layer_norm_backward,
                (rows, rows, (8192, 1), (8192, 1), row, row),
                dtype,
            ),
        ]
    return found


def ways(case: Case, inputs: list[torch.Tensor]) -> dict[str, Callable]:
    module = Function(case.run)
    torch._dynamo.reset()
    return {
        "eager": module,
        "torch.compile": torch.compile(Function(case.run)),
        "torchweld": torchweld.fuse(Function(case.run), tuple(inputs)),
    }


def rounds(
    run: dict[str, Callable], inputs: list[torch.Tensor], count: int
) -> dict[str, list[float]]:
    """Milliseconds of each way in each round, after two rounds of warm-up."""
    times: dict[str, list[float]] = {name: [] for name in run}
    for _ in range(count + 2):
        for name, call in run.items():
            start = time.perf_counter()
            call(*inputs)
            times[name].append(1e3 * (time.perf_counter() - start))
    return {name: t[2:] for name, t in times.items()}


def keep_freed_memory() -> None:
    """glibc's malloc: no mappings of their own for large blocks (M_MMAP_MAX), and no trimming
    (M_TRIM_THRESHOLD)."""
    mallopt = ctypes.CDLL(None).mallopt
    mallopt(-4, 0)
    mallopt(-1, 2**31 - 1)


def spread(times: list[float]) -> float:
    low, middle, high = statistics.quantiles(times, n=4)
    return (high - low) / middle


def report(case: Case, times: dict[str, list[float]]) -> float:
    def ratio(name: str) -> float:
        return statistics.median(a / b for a, b in zip(times[name], times["torchweld"]))

    cells = [f"{statistics.median(t):8.2f} ±{spread(t):4.0%}" for t in times.values()]
    kind = str(case.dtype).removeprefix("torch.")
    print(
        f"{case.name:22} {kind:9}",
        *cells,
        f"{ratio('eager'):9.2f}x {ratio('torch.compile'):9.2f}x",
        flush=True,
    )
    return ratio("torch.compile")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--only", default="")
    parser.add_argument("--fault", action="store_true")
    args = parser.parse_args()
    if not args.fault:
        keep_freed_memory()
    torch.set_num_threads(args.threads)
    print(
        f"torch {torch.__version__}, {torch.get_num_threads()} threads, milliseconds, "
        f"medians of {args.rounds} rounds"
    )
    print(
        f"{'kernel':32} {'eager':>14} {'torch.compile':>14} {'torchweld':>14}"
        f" {'vs eager':>10} {'vs compile':>10}"
    )
    found = []
    with torch.no_grad():
        for case in cases():
            if args.only in case.name:
                inputs = case.inputs()
                found.append(report(case, rounds(ways(case, inputs), inputs, args.rounds)))
    print(
        f"geometric mean against torch.compile: {statistics.geometric_mean(found):.2f}x, "
        f"lowest {min(found):.2f}x"
    )


if __name__ == "__main__":
    main()
