"""Small and odd kernels on the CPU: torchweld against eager and torch.compile in one process.

python bench/cpu_sweep.py [--only WORD] [--rounds N] [--eager]

The slowest against the better of both come last. `--eager` leaves torch.compile out. Shapes are
odd on purpose: lengths that no vector divides, transposes, reductions over the first dimension,
integers, guards, scatters, short rows.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch.nn import functional as F

import torchweld
from cpu_kernels import Function, keep_freed_memory

f32, bf16, f16, f64 = torch.float32, torch.bfloat16, torch.float16, torch.float64
i64, b1 = torch.int64, torch.bool
Spec = tuple[tuple[int, ...], torch.dtype]


def rows(n: int, dtype: torch.dtype = f32, count: int = 1 << 20) -> Spec:
    """About `count` elements in rows of n."""
    return (count // n, n), dtype


def made(spec: Spec) -> torch.Tensor:
    shape, dtype = spec
    if dtype == i64:
        return torch.randint(0, 16, shape)
    return torch.randint(0, 2, shape).bool() if dtype == b1 else torch.randn(shape).to(dtype)


def pointwise() -> dict[str, tuple[Callable, tuple[Spec, ...]]]:
    big, row, low = rows(1024), ((1024,), f32), rows(1024, bf16)
    image = ((8, 64, 40, 40), f32)
    return {
        "bias + gelu erf": (lambda x, b: F.gelu(x + b), (big, row)),
        "bias + gelu erf bf16": (lambda x, b: F.gelu(x + b), (low, ((1024,), bf16))),
        "silu(x) * y": (lambda x, y: F.silu(x) * y, (big, big)),
        "silu(x) * y bf16": (lambda x, y: F.silu(x) * y, (low, low)),
        "silu(x) * y small": (lambda x, y: F.silu(x) * y, (((1, 64), f32), ((1, 64), f32))),
        "silu(x) * y f16": (lambda x, y: F.silu(x) * y, (rows(1024, f16),) * 2),
        "relu(x) + y f16": (lambda x, y: F.relu(x) + y, (rows(1024, f16),) * 2),
        "softplus bf16": (F.softplus, (low,)),
        "mish": (F.mish, (big,)),
        "x % 0.7": (lambda x: x % 0.7, (big,)),
        "x ** 4": (lambda x: x**4, (big,)),
        "tanh(x) + sin(x)": (lambda x: torch.tanh(x) + torch.sin(x), (big,)),
        "log(exp(x) + 1)": (lambda x: torch.log(torch.exp(x) + 1), (big,)),
        "exp(x) * y f64": (lambda x, y: torch.exp(x) * y, (rows(1024, f64, 1 << 18),) * 2),
        "tanh(x) f64 * 2": (lambda x: torch.tanh(x) * 2, (rows(1024, f64, 1 << 18),)),
        "erf(x) + 1 f64": (lambda x: torch.erf(x) + 1, (rows(1024, f64, 1 << 18),)),
        "pow 1.7 + 1": (lambda x: torch.pow(x.abs(), 1.7) + 1, (big,)),
        "row scale": (lambda x, s: x * s + 1, (big, ((1024, 1), f32))),
        "row scale 17": (lambda x, s: x * s + 1, (rows(17), ((61680, 1), f32))),
        "column scale 17": (lambda x, s: x * s + 1, (rows(17), ((17,), f32))),
        "where(mask)": (lambda m, x, y: torch.where(m, x, y) * 2, (rows(1024, b1), big, big)),
        "bool and, not": (lambda a, b: (a & ~b) | (a ^ b), (rows(1024, b1),) * 2),
        "int64 mod, mul": (lambda a, b: (a * 3 + b) % 7, (rows(1024, i64),) * 2),
        "int64 compare": (lambda a, b: (a > b) & (a < 9), (rows(1024, i64),) * 2),
        "clamp, int cast": (lambda x: (x * 16).clamp(-128, 127).to(torch.int8), (big,)),
        "channels last + bias": (
            lambda x, b: F.relu(x.to(memory_format=torch.channels_last) + b[:, None, None]),
            (image, ((64,), f32)),
        ),
        "transpose + add": (lambda x, y: x.t() + y, (((1000, 777), f32), ((777, 1000), f32))),
        "transpose copy bf16": (lambda x: x.t().contiguous() * 2, (((1000, 777), bf16),)),
        "permute heads": (
            lambda x: (x.view(8, 128, 12, 64) * 0.125).transpose(1, 2).contiguous(),
            (((8, 128, 768), f32),),
        ),
        "cat": (lambda x, y: torch.cat([x, y * 2], 1), (rows(500), ((2097, 300), f32))),
        "rotary": (
            lambda x, c, s: x * c + torch.cat([-x[..., 32:], x[..., :32]], -1) * s,
            (((2, 16, 512, 64), f32), ((512, 64), f32), ((512, 64), f32)),
        ),
        "pad": (lambda x: F.pad(x, (3, 5)) + 1, (rows(100),)),
        "reflect pad": (lambda x: F.pad(x, (1, 1, 1, 1), mode="reflect"), (image,)),
        "zero pad bf16": (lambda x: F.pad(x, (1, 1, 1, 1)), (((8, 64, 40, 40), bf16),)),
        "pixel shuffle": (lambda x: F.pixel_shuffle(x, 2), (image,)),
        "rotary, interleaved": (
            lambda x: torch.stack([-x[..., 1::2], x[..., ::2]], -1).flatten(-2) + x,
            (rows(64),),
        ),
        "boxes": (lambda b: torch.stack([b[:, 0] - b[:, 2], b[:, 0] + b[:, 2]], -1), (rows(4),)),
        "gather bf16": (lambda x, i: x.gather(1, i), (low, ((1024, 1024), i64))),
        "tril mask": (lambda x: x.tril() * 2, (((8, 300, 300), f32),)),
        "roll + add": (lambda x: x.roll(3, 1) + x, (rows(1000),)),
        "stack": (lambda x, y: torch.stack([x + y, x - y], -1), (big, big)),
        "upsample": (lambda x: F.interpolate(x, scale_factor=2.0) * 2, (((4, 16, 64, 64), f32),)),
    }


def reducing() -> dict[str, tuple[Callable, tuple[Spec, ...]]]:
    cases = {}
    for n in (3, 17, 33, 127, 1000, 4097):
        cases[f"softmax {n}"] = (lambda x: torch.softmax(x, -1), (rows(n),))
        cases[f"layer_norm {n}"] = (lambda x, n=n: F.layer_norm(x, (n,)), (rows(n),))
    first = (((1000, 1000), f32),)
    return cases | {
        "softmax 127 bf16": (lambda x: torch.softmax(x * 0.5, -1), (rows(127, bf16),)),
        "layer_norm 1000 bf16": (lambda x: F.layer_norm(x * 2, (1000,)), (rows(1000, bf16),)),
        "masked softmax": (
            lambda x, m: torch.softmax(x.masked_fill(m, -1e9), -1),
            (rows(200), ((5242, 200), b1)),
        ),
        "log_softmax 5000": (lambda x: torch.log_softmax(x, -1), (rows(5000),)),
        "softmax first dim": (lambda x: torch.softmax(x, 0), first),
        "sum first dim": (lambda x: (x * x).sum(0), first),
        "sum first dim bf16": (lambda x: (x * x).sum(0), (((1000, 1000), bf16),)),
        "sum all": (lambda x, y: (x - y).square().mean(), (rows(1000),) * 2),
        "max all": (lambda x: (x * 2).max(), (rows(1000),)),
        "sum middle": (lambda x: (x * 2).sum(1), (((16, 64, 1000), f32),)),
        "sum 3": (lambda x: (x * x).sum(-1), (rows(3),)),
        "norm of rows 64": (lambda x: x / x.norm(dim=-1, keepdim=True), (rows(64),)),
        "var 1000": (lambda x: x.var(-1), (rows(1000),)),
        "argmax 1000": (lambda x: (x * 2).argmax(-1), (rows(1000),)),
        "argmax first": (lambda x: (x * 2).argmax(0), first),
        "amax first": (lambda x: (x * 2).amax(0), first),
        "logsumexp": (lambda x: torch.logsumexp(x, -1), (rows(1000),)),
        "cumsum rows": (lambda x: torch.cumsum(x, -1), (rows(1000),)),
        "cumsum first": (lambda x: torch.cumsum(x * 2, 0), first),
        "any": (lambda x: (x > 4).any(-1), (rows(1000),)),
        "int sum": (lambda x: (x * 3).sum(-1), (rows(1000, i64),)),
        "count": (lambda x: (x > 0).sum(-1), (rows(1000),)),
        "batch_norm": (
            lambda x: F.batch_norm(x, None, None, training=True),
            (((8, 32, 56, 56), f32),),
        ),
        "group_norm": (lambda x: F.group_norm(x, 8), (((8, 32, 56, 56), f32),)),
        "embedding": (lambda i, w: F.embedding(i, w) * 2, (((8, 512), i64), ((16, 256), f32))),
        "gather": (lambda x, i: x.gather(1, i) * 2, (rows(64), ((16384, 8), i64))),
        "index_add": (
            lambda x, i: torch.zeros(16, 256).index_add(0, i, x),
            (((4096, 256), f32), ((4096,), i64)),
        ),
        "scatter_add": (
            lambda x, i: torch.zeros(16384, 16).scatter_add(1, i, x),
            (((16384, 8), f32), ((16384, 8), i64)),
        ),
        "cross_entropy": (lambda x, i: F.cross_entropy(x, i), (rows(1000), ((1048,), i64))),
        "one_hot": (lambda i: F.one_hot(i, 16) * 2, (((32768,), i64),)),
    }


def timed(name: str, call: Callable, specs, rounds: int, eager_only: bool) -> tuple:
    torch.manual_seed(0)
    inputs = [made(s) for s in specs]
    torch._dynamo.reset()
    calls = {"eager": Function(call), "torchweld": torchweld.fuse(Function(call), tuple(inputs))}
    if not eager_only:
        calls["torch.compile"] = torch.compile(Function(call))
    for way in calls.values():
        way(*inputs), way(*inputs)
    times: dict[str, list[float]] = {w: [] for w in calls}
    for _ in range(rounds):
        for way, function in calls.items():
            start = time.perf_counter()
            function(*inputs)
            times[way].append(1e6 * (time.perf_counter() - start))
    return name, {w: statistics.median(t) for w, t in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="")
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--eager", action="store_true")
    args = parser.parse_args()
    keep_freed_memory()
    found = []
    with torch.no_grad():
        for name, (call, specs) in (pointwise() | reducing()).items():
            if args.only in name:
                found.append(timed(name, call, specs, args.rounds, args.eager))
                _show(*found[-1])
    print("\nslowest first, against the better of the others")
    for name, medians in sorted(found, key=lambda f: _ratio(f[1])):
        print(f"{_ratio(medians):6.2f}x  {name}")


def _ratio(medians: dict[str, float]) -> float:
    ours = medians["torchweld"]
    return min(t for w, t in medians.items() if w != "torchweld") / ours


def _show(name: str, medians: dict[str, float]) -> None:
    cells = "  ".join(f"{way} {us:9.1f} us" for way, us in medians.items())
    print(f"{name:24} {cells}  {_ratio(medians):5.2f}x", flush=True)


if __name__ == "__main__":
    main()
