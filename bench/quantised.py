"""Quantised linear layers, of weights alone or of both sides ("x"): eager, torch.compile and
torchweld, in turns.

    python bench/quantised.py [--rows 1,16] [--kinds int8,int4,float8] [--dtypes float32,bfloat16]
                              [--shape 14336x4096] [--rounds 15] [--weights 8] [--device cuda]
                              [--cpu-time]

Each way is first checked against float64: its relative L2 error over eager's is told. Then each
round times every way once, on the next of several weights, which together are larger than the
caches. The table has medians, and medians over rounds of paired ratios. "of memory" is the packed
bytes over the time, as a share of the rate at which a loop in C++ reads the same bytes. On a GPU a
round is a CUDA graph of one call for each weight, and the rate is that of a copy.
"""
from __future__ import annotations

import argparse
import ctypes
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path

import torch
from torch.nn import functional as F

import torchweld

READER = """#include <cstdint>
extern "C" int64_t read_all(const int64_t* p, int64_t n) {
  int64_t sum = 0;
  #pragma omp parallel for simd reduction(+ : sum)
  for (int64_t i = 0; i < n; ++i) sum += p[i];
  return sum;
}"""
GROUP = 128


def int8(x, q, scale, zero):
    """One scale for each output."""
    return F.linear(x, q.to(x.dtype) * scale[:, :1])


def int8_after(x, q, scale, zero):
    """The scale behind the product, as torchao's int8 weight-only layers write it."""
    return torch.mm(x, q.t().to(x.dtype)) * scale[:, 0]


def int8_groups(x, q, scale, zero):
    """Groups of 128 inputs with zero points."""
    w = (q.view(*scale.shape, GROUP).to(x.dtype) - zero[..., None]) * scale[..., None]
    return F.linear(x, w.view(q.shape))


def int4(x, q, scale, zero):
    """Two to a byte, groups of 128 inputs with zero points."""
    w = torch.stack([q & 15, q >> 4], -1).view(*scale.shape, GROUP).to(x.dtype)
    return F.linear(x, ((w - zero[..., None]) * scale[..., None]).view(q.shape[0], -1))


def int8_product(x, q, scale, zero):
    """Rows quantised as they come, integers multiplied, scaled back, with an activation."""
    rows = x.abs().amax(-1, keepdim=True).float().clamp(min=1e-5) / 127
    whole = (x.float() / rows).round().clamp(-128, 127).to(torch.int8)
    return F.gelu((torch._int_mm(whole, q.t()) * rows * scale[:, 0].float()).to(x.dtype))


def float8_product(x, q, scale, zero):
    """The same in 8-bit floats. In float64 the product is, too."""
    rows = x.abs().amax(-1, keepdim=True).float().clamp(min=1e-12) / 448
    narrow = (x.float() / rows).clamp(-448, 448).to(q.dtype)
    columns = scale[None, :, 0].float()
    if x.dtype == torch.float64:
        return F.gelu((narrow.double() @ q.double().t()) * rows * columns)
    y = torch._scaled_mm(narrow, q.t(), scale_a=rows, scale_b=columns, out_dtype=torch.bfloat16)
    return F.gelu(y).to(x.dtype)


KINDS = {
    "int8": int8, "int8 after": int8_after, "int8 groups": int8_groups, "int4": int4,
    "float8": int8, "float8 after": int8_after, "int8 x int8": int8_product,
    "float8 x float8": float8_product,
}  # fmt: skip
FLOAT8 = torch.float8_e4m3fn


def inputs(
    kind: str, rows: int, outputs: int, depth: int, dtype, weights: int, device: str
) -> list[tuple]:
    torch.manual_seed(0)
    x = torch.randn(rows, depth).to(dtype)
    scale = (torch.rand(outputs, depth // GROUP) / depth**0.5).to(dtype)
    zero = torch.randint(4, 12, scale.shape).to(dtype)
    low, high, kept, width = (0, 256, torch.uint8, depth // 2) if kind == "int4" else (
        -128, 128, torch.int8, depth)  # fmt: skip
    packed = torch.randint(low, high, (outputs, width), dtype=kept)
    if kind.startswith("float8"):
        packed, kept = packed.to(FLOAT8).view(kept), FLOAT8
    x, packed, scale, zero = (t.to(device) for t in (x, packed, scale, zero))
    return [(x, packed.roll(i, 0).view(kept), scale, zero) for i in range(weights)]


def reader() -> Callable[[torch.Tensor], None]:
    folder = Path(tempfile.mkdtemp())
    (folder / "read.cpp").write_text(READER)
    flags = ["-O3", "-march=native", "-mprefer-vector-width=512", "-fopenmp", "-shared", "-fPIC"]
    subprocess.run(["g++", *flags, "-o", folder / "read.so", folder / "read.cpp"], check=True)
    read = ctypes.CDLL(str(folder / "read.so")).read_all
    return lambda q: read(ctypes.c_void_p(q.data_ptr()), ctypes.c_int64(q.nbytes // 8))


def error(found: torch.Tensor, exact: torch.Tensor) -> float:
    return float((found.double() - exact).norm() / exact.norm())


def seconds(clock: Callable[[], float], call: Callable, *args) -> float:
    start = clock()
    call(*args)
    return clock() - start


def rounds_of(calls, given, asked) -> list[dict[str, float]]:
    """Seconds of a call, each way in each round."""
    if asked.device == "cuda":
        return [_graph_seconds(calls, given) for _ in range(asked.rounds)]
    clock = time.process_time if asked.cpu_time else time.perf_counter
    return [
        {name: seconds(clock, run, *given[(i + 2 * n) % len(given)])
         for n, (name, run) in enumerate(calls.items())}
        for i in range(asked.rounds)
    ]  # fmt: skip


def _graph_seconds(calls, given) -> dict[str, float]:
    from gpu_kernels import graph_us

    reads = given[0][1].nbytes / copy_rate()
    ways = {n: run for n, run in calls.items() if n != "read"}
    spent = {n: graph_us([partial(run, *g) for g in given]) for n, run in ways.items()}
    return {"read": reads, **{n: us / 1e6 for n, us in spent.items()}}


@cache
def copy_rate() -> float:
    """Bytes a second that a copy reads and writes."""
    from gpu_kernels import copy_bytes_per_us

    return copy_bytes_per_us() * 1e6


def measured(kind: str, rows: int, shape: Sequence[int], dtype, asked, read) -> str:
    """One row of the table."""
    torch._dynamo.reset()
    eager = KINDS[kind]
    given = inputs(kind, rows, *shape, dtype, asked.weights, asked.device)
    fused = torchweld.fuse(eager, dynamic=False)
    ways = {"eager": eager, "compile": torch.compile(eager, dynamic=False), "torchweld": fused}
    x, q, *others = given[0]
    exact = eager(x.double(), q, *(t.double() for t in others))
    errors = {name: error(run(*given[0]), exact) for name, run in ways.items()}
    calls = {"read": lambda _, q, *rest: read(q), **ways}
    taken = rounds_of(calls, given, asked)
    times = {name: statistics.median(t[name] for t in taken) * 1e3 for name in taken[0]}
    over = {n: statistics.median(t[n] / t["torchweld"] for t in taken) for n in times}
    cells = [kind, str(dtype).removeprefix("torch."), str(rows)]
    cells += [f"{times[n]:.3g}" for n in times]
    cells += [f"{over['eager']:.2f}", f"{over['compile']:.2f}", f"{over['read']:.2f}",
              f"{errors['torchweld'] / errors['eager']:.2f}"]  # fmt: skip
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", default="1,16")
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--dtypes", default="float32,bfloat16")
    parser.add_argument("--shape", default="14336x4096", help="outputs x inputs of the layer")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--weights", type=int, default=8)
    parser.add_argument("--cpu-time", action="store_true", help="of all threads, not wall time")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    asked = parser.parse_args()
    gpu = asked.device == "cuda"
    where = torch.cuda.get_device_name() if gpu else f"{torch.get_num_threads()} threads"
    print(f"{where}, torch {torch.__version__}, {asked.shape}\n")
    head = ["weight", "dtype", "rows", "read, ms", "eager, ms", "torch.compile, ms",
            "torchweld, ms", "over eager", "over torch.compile", "of memory",
            "error over eager's"]  # fmt: skip
    print(f"| {' | '.join(head)} |\n{'| --- ' * len(head)}|")
    read = None if gpu else reader()
    shape = [int(n) for n in asked.shape.split("x")]
    with torch.no_grad():
        for dtype in (getattr(torch, name) for name in asked.dtypes.split(",")):
            for kind in asked.kinds.split(","):
                for rows in map(int, asked.rows.split(",")):
                    print(measured(kind, rows, shape, dtype, asked, read), flush=True)


if __name__ == "__main__":
    main()
