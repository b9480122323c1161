"""Memory-bound kernels on a GPU: torchweld's, torch.compile's, and the floor that the bytes set.

    python bench/gpu_kernels.py [--quick | --reductions] [--no-sweep]

For each operation and shape: `floor` = bytes read and written at copy speed, `kernel` = the
generated kernel with its default schedule, `best` = the fastest of its neighbours, `fuse` =
torchweld.fuse of the plain function, `compile` = torch.compile. Inputs rotate so that L2 does not
hold them; each timing is a CUDA graph of one call for each set of inputs, replayed. The table comes
last; JSON goes to $OUT (default ./out).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import torch
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
import triton_cases as cases
from torchweld.ir.access import addressed
from torchweld.runtime.triton_compile import compile_triton, resources
from torchweld.templates.pointwise_reduce.gpu.default import candidates
from torchweld.templates.pointwise_reduce.gpu.generate import generate
from triton_cases import Case
from triton_run import bundle_of, gpu_starter, launches, prepare

ROTATED_BYTES = 400 << 20  # eight times the L2 of an H100
REPLAYS = 30


@dataclass(frozen=True)
class Workload:
    """`inputs(rows, columns)`: tensors on the device; `case`: the same as one Comp, if written by
    hand."""

    name: str
    function: Callable
    inputs: Callable
    floor_bytes: Callable  # (rows, columns) -> bytes
    case: Callable | None = None
    shapes: tuple[tuple[int, int], ...] = ((16384, 4096), (8192, 768), (131072, 128))


def _randn(*shape, dtype=torch.bfloat16):
    return torch.randn(*shape, device="cuda", dtype=dtype)


def add_layer_norm(x, r, w, b):
    s = x + r
    return s, F.layer_norm(s, (s.shape[-1],), w, b, 1e-5)


def add_rms_norm(x, r, w):
    s = x + r
    wide = s.float()
    normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)
    return s, (normed * w.float()).to(x.dtype)


def softmax_scale_mask(x, m):
    return torch.softmax(x.float() * 0.125 + m, -1).to(x.dtype)


def gelu_mul(g, u):
    return F.gelu(g) * u


def layer_norm_backward(dy, x, mean, rstd, w):
    return torch.ops.aten.native_layer_norm_backward(
        dy, x, [x.shape[-1]], mean, rstd, w, w, [True] * 3
    )


def rms_norm_backward(dy, x, rstd, w):
    wide, grad = x.float(), dy.float()
    normed = wide * rstd
    inner = grad * w.float()
    dx = rstd * (inner - normed * (inner * normed).mean(-1, keepdim=True))
    return dx.to(x.dtype), (grad * normed).sum(0).to(x.dtype)


def softmax_backward(dy, y):
    grad = torch.ops.aten._softmax_backward_data(dy.float(), y.float(), -1, torch.float32)
    return (grad * 0.125).to(y.dtype)


def gelu_mul_backward(dy, g, u):
    return torch.ops.aten.gelu_backward(dy * u, g), dy * F.gelu(g)


def cross_entropy(x, at):
    return F.cross_entropy(x.float(), at, reduction="none")


def cross_entropy_backward(x, at, logsumexp, g):
    hit = torch.arange(x.shape[-1], device=x.device) == at
    return ((torch.exp(x.float() - logsumexp) - hit.float()) * g).to(x.dtype)


VOCABULARY = ((8192, 50257),)
WORKLOADS = (
    Workload("add+LayerNorm", add_layer_norm,
             lambda n, c: (_randn(n, c), _randn(n, c), _randn(c), _randn(c)),
             lambda n, c: 8 * n * c + 4 * c, cases.add_layer_norm),
    Workload("add+RMSNorm", add_rms_norm, lambda n, c: (_randn(n, c), _randn(n, c), _randn(c)),
             lambda n, c: 8 * n * c + 2 * c, cases.add_rms_norm),
    Workload("softmax(x*s+m)", softmax_scale_mask,
             lambda n, c: (_randn(n, c), _randn(c, dtype=torch.float32)),
             lambda n, c: 4 * n * c + 4 * c, lambda n, c: cases.softmax(n, c, dtype="bf16")),
    Workload("gelu(g)*u", gelu_mul, lambda n, c: (_randn(n, c), _randn(n, c)),
             lambda n, c: 6 * n * c, cases.gelu_mul),
    Workload("LayerNorm bwd", layer_norm_backward,
             lambda n, c: (_randn(n, c), _randn(n, c), _randn(n, 1, dtype=torch.float32),
                           _randn(n, 1, dtype=torch.float32), _randn(c)),
             lambda n, c: 6 * n * c + 8 * n + 6 * c, cases.layer_norm_backward),
    Workload("RMSNorm bwd", rms_norm_backward,
             lambda n, c: (_randn(n, c), _randn(n, c), _randn(n, 1, dtype=torch.float32),
             _randn(c)), lambda n, c: 6 * n * c + 4 * n + 4 * c),
    Workload("softmax bwd", softmax_backward, lambda n, c: (_randn(n, c), _randn(n, c)),
             lambda n, c: 6 * n * c),
    Workload("gelu*u bwd", gelu_mul_backward,
             lambda n, c: (_randn(n, c), _randn(n, c), _randn(n, c)), lambda n, c: 10 * n * c),
    Workload("cross-entropy", cross_entropy,
             lambda n, c: (_randn(n, c), torch.arange(n, device="cuda") % c),
             lambda n, c: 2 * n * c + 12 * n, cases.cross_entropy, VOCABULARY),
    Workload("cross-entropy bwd", cross_entropy_backward,
             lambda n, c: (_randn(n, c), torch.arange(n, device="cuda")[:, None] % c,
                           _randn(n, 1, dtype=torch.float32) + 11,
                           _randn(n, 1, dtype=torch.float32)),
             lambda n, c: 4 * n * c + 16 * n, cases.cross_entropy_backward, VOCABULARY),
)  # fmt: skip


def divergence(x, y):
    return F.kl_div(x.log_softmax(-1), y.softmax(-1), reduction="batchmean")


def _wide(*shape):
    return _randn(*shape, dtype=torch.float32)


def _middle(name: str, monoid: str, function: Callable, terms: int, *shapes) -> Workload:
    """Over the middle dimension of [rows, terms, columns], in float32."""
    return Workload(
        f"{name} of {terms} in the middle", function, lambda n, c: (_wide(n, terms, c),),
        lambda n, c: 4 * n * c * terms + (8 if monoid == "argmax" else 4) * n * c,
        lambda n, c: cases.prepared(cases.middle(monoid, n, terms, c)), shapes,
    )  # fmt: skip


def _rows(name: str, monoid: str, function: Callable, dim: int, *shapes) -> Workload:
    """Over a dimension of [rows, columns], in float32."""
    return Workload(
        f"{name} over {dim}", function, lambda n, c: (_wide(n, c),), lambda n, c: 4 * n * c,
        lambda n, c: cases.prepared(cases.reduction(monoid, n, c, dim=dim)), shapes,
    )  # fmt: skip


REDUCTIONS = (
    *(_middle("sum", "sum", lambda x: x.sum(1), k, (512, 1024), (512, 1001)) for k in (16, 17, 32)),
    _middle("sum", "sum", lambda x: x.sum(1), 1000, (64, 333), (64, 336)),
    _middle("sum", "sum", lambda x: x.sum(1), 77, (4096, 77), (4096, 80)),
    _middle("argmax", "argmax", lambda x: x.argmax(1), 32, (512, 1024)),
    _middle("argmax", "argmax", lambda x: x.argmax(1), 1000, (64, 333), (64, 336)),
    _rows("argmax", "argmax", lambda x: x.max(1), 1, (8192, 1001), (8192, 50001)),
    _rows("argmax", "argmax", lambda x: x.max(0), 0, (8192, 4000)),
    Workload("logsumexp over 0", lambda x: x.logsumexp(0), lambda n, c: (_wide(n, c),),
             lambda n, c: 4 * n * c, None, ((8192, 4000), (65536, 64))),
    Workload("log_softmax over 0", lambda x: x.log_softmax(0), lambda n, c: (_wide(n, c),),
             lambda n, c: 8 * n * c, None, ((8192, 4000),)),
    Workload("divergence of logits", divergence, lambda n, c: (_wide(n, c), _wide(n, c)),
             lambda n, c: 8 * n * c, None, ((4096, 32000),)),
    *(Workload(f"{name}, f32", function, lambda n, c: (_wide(n * c),), lambda n, c: 8 * n * c,
               lambda n, c, name=name: cases.inverse(cases.INVERSES[name], n * c), ((8192, 4000),))
      for name, function in (("sigmoid", torch.sigmoid), ("reciprocal", torch.reciprocal))),
    Workload("five sigmoids, f32", lambda x: sum(torch.sigmoid(x * k) for k in range(1, 6)),
             lambda n, c: (_wide(n * c),), lambda n, c: 8 * n * c, None, ((8192, 4000),)),
)  # fmt: skip


def graph_us(calls: list[Callable]) -> float:
    """Microseconds of one call: all of them captured once, replayed, the median over replays."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for call in calls:
            call()
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(REPLAYS + 1)]
    graph.replay()
    for mark in marks:
        mark.record()
        if mark is not marks[-1]:
            graph.replay()
    torch.cuda.synchronize()
    spans = [a.elapsed_time(b) for a, b in pairwise(marks)]
    return 1000 * statistics.median(spans) / len(calls)


def sets_for(floor_bytes: int) -> int:
    return max(1, min(64, -(-ROTATED_BYTES // floor_bytes)))


def copy_bytes_per_us() -> float:
    """Bytes read and written by the faster of the driver's copy and a pointwise kernel, 1 GiB each
    way."""
    x = torch.zeros(1 << 28, device="cuda")
    y = torch.empty_like(x)
    moves = (lambda: y.copy_(x), lambda: torch.neg(x, out=y))
    return max(2 * x.nbytes / _events_us(m) for m in moves)


def _events_us(call: Callable, repeats: int = 10) -> float:
    for _ in range(3):
        call()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(repeats):
        call()
    end.record()
    torch.cuda.synchronize()
    return 1000 * start.elapsed_time(end) / repeats


def function_us(function: Callable, sets: list[tuple]) -> float:
    with torch.no_grad():
        for _ in range(3):
            function(*sets[0])
        return graph_us([lambda s=s: function(*s) for s in sets])


class Wrapped(torch.nn.Module):
    def __init__(self, function: Callable) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs):
        return self.function(*inputs)


def fused_us(function: Callable, sets: list[tuple]) -> float | None:
    import torchweld

    if not hasattr(torchweld, "fuse"):
        return None
    fused = torchweld.fuse(Wrapped(function), cuda_graphs=False)
    return function_us(fused, sets)


def kernel_us(case: Case, count: int, schedule=None) -> tuple[float, list]:
    """Time of the generated kernels, and their binaries. Results go to the same memory for all sets
    of inputs, as an allocator that gets its blocks back would have it."""
    bundle = bundle_of(case, schedule)
    compiled = {s: compile_triton(s) for s in bundle.sources}
    sets = []
    for seed in range(count):
        made = on_device(case, seed)
        prepare(case, bundle, made)
        results = (*case.comp.writes, *(b.name for b in bundle.scratch))
        sets.append(made | {n: sets[0][n] for n in results if sets})
    calls = [lambda m=m: launches(case, bundle, m, gpu_starter(compiled)) for m in sets]
    return graph_us(calls), [c.binary() for c in compiled.values()]


def on_device(case: Case, seed: int) -> dict[str, torch.Tensor]:
    """Random buffers, made on the device; integers, which may be positions, are zero."""
    from torchweld.core import dtypes

    torch.manual_seed(seed)
    made = {n: (b.shape, dtypes.to_torch(b.dtype)) for n, b in case.buffers.items()}
    return {
        n: (torch.randn if d.is_floating_point else torch.zeros)(s, device="cuda", dtype=d)
        for n, (s, d) in made.items()
    }


def swept_us(case: Case, count: int) -> tuple[float, str]:
    """The fastest neighbour of the default schedule."""
    near = list(candidates(addressed(case.comp, case.buffers, {}), {}, 132))
    with ThreadPoolExecutor(8) as pool:
        sources = [s for c in near for s in generate(case.comp, case.buffers, c).sources]
        list(pool.map(compile_triton, sources))
    timed = [(kernel_us(case, count, c)[0], c) for c in near]
    for us, c in sorted(timed, key=lambda t: t[0])[:4]:
        tile = f"{c.block_rows}x{c.block_columns}"
        print(
            f"    {us:8.1f} us  tile {tile} warps {c.num_warps} splits {c.splits} stages {c.stages}"
        )
    us, chosen = min(timed, key=lambda t: t[0])
    return us, f"{chosen.block_rows}x{chosen.block_columns}/{chosen.num_warps}w/{chosen.splits}"


def attempt(what: str, call: Callable):
    try:
        return call()
    except Exception:
        print(f"{what} failed:\n{traceback.format_exc(limit=4)}", file=sys.stderr)
        return None


def measure(work: Workload, rows: int, columns: int, copy_speed: float, sweep: bool) -> dict:
    floor_bytes = work.floor_bytes(rows, columns)
    count = sets_for(floor_bytes)
    result = {"name": work.name, "shape": [rows, columns], "floor_us": floor_bytes / copy_speed}
    print(f"{work.name} [{rows}, {columns}], {count} sets", flush=True)
    if work.case is not None:
        case = work.case(rows, columns)
        made = attempt("kernel", lambda: kernel_us(case, count))
        if made:
            result["kernel_us"], binaries = made
            attempt("resources", lambda: print("   ", *map(resources, binaries)))
        if sweep:
            best = attempt("sweep", lambda: swept_us(case, count))
            if best:
                result["best_us"], result["best"] = best
    sets = [work.inputs(rows, columns) for _ in range(count)]
    result["fuse_us"] = attempt("fuse", lambda: fused_us(work.function, sets))
    torch._dynamo.reset()
    compiled = torch.compile(work.function)
    result["compile_us"] = attempt("compile", lambda: function_us(compiled, sets))
    return result


def table(results: list[dict], copy_speed: float) -> str:
    columns = ("floor_us", "kernel_us", "best_us", "fuse_us", "compile_us")
    lines = [f"device copy {copy_speed / 1e6:.2f} TB/s; us, share of copy speed in brackets"]
    lines.append(f"{'':32}" + "".join(f"{c.removesuffix('_us'):>17}" for c in columns))
    for r in results:
        cells = [_cell(r.get(c), r["floor_us"]) for c in columns]
        title = f"{r['name']} [{r['shape'][0]}, {r['shape'][1]}]"
        lines.append(f"{title:32}" + "".join(cells) + "  " + r.get("best", ""))
    return "\n".join(lines)


def _cell(us: float | None, floor_us: float) -> str:
    return f"{'-':>17}" if us is None else f"{us:9.1f} ({floor_us / us:5.2f})"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="the first four operations")
    parser.add_argument("--reductions", action="store_true", help="and quotients of one, alone")
    parser.add_argument("--no-sweep", action="store_true", help="default schedules only")
    options = parser.parse_args()
    copy_speed = copy_bytes_per_us()
    works = WORKLOADS[:4] if options.quick else REDUCTIONS if options.reductions else WORKLOADS
    results = [
        measure(w, *shape, copy_speed, not options.no_sweep) for w in works for shape in w.shapes
    ]
    out = Path(os.environ.get("OUT", "out"))
    out.mkdir(parents=True, exist_ok=True)
    report = {
        "copy_bytes_per_us": copy_speed,
        "device": torch.cuda.get_device_name(),
        "results": results,
    }
    (out / "gpu_kernels.json").write_text(json.dumps(report, indent=1))
    print(table(results, copy_speed))


if __name__ == "__main__":
    main()
