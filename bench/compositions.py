"""A search for slow kernels: reductions of views, and of all pairs of rows, against eager.

    python bench/compositions.py [--device cuda] [--seconds 60] [--seed 0] [--only pairs:]
                                 [--dtypes float32,bfloat16] [--slower-than 0.9]

Cases are drawn from the product of the tables below. Each is compiled, compared with eager, and
timed in turns with it for a quarter of a second: medians. Those slower than asked are told, and at
the end the geometric mean of all. Large differences between two cases that move the same bytes are
as telling as those from eager.
"""
from __future__ import annotations

import argparse
import itertools
import math
import random
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch.nn import functional as F

import torchweld

Axes = int | tuple[int, int]
SIZES = {
    "cpu": ((64, 128, 256), (8, 512, 515), (2, 64, 16384), (1000, 30, 40), (4096, 4, 64),
            (50, 3, 7000), (3000, 17, 13)),
    "cuda": ((128, 256, 256), (32, 511, 515), (4, 64, 32768), (2048, 64, 64), (16384, 4, 128),
             (100, 3, 30000), (8000, 37, 33)),
}  # fmt: skip
PAIRS = {  # rows of one, rows of the other, terms
    "cpu": ((256, 256, 64), (100, 300, 17), (64, 64, 1000), (1024, 1024, 8), (33, 2000, 40)),
    "cuda": ((1024, 1024, 64), (500, 3000, 17), (256, 256, 1000), (4096, 4096, 8)),
}
VIEWS = {
    "as it is": lambda t: t,
    "turned 02": lambda t: t.transpose(0, 2),
    "turned 12": lambda t: t.transpose(1, 2),
    "turned 01": lambda t: t.transpose(0, 1),
    "every second": lambda t: t[..., ::2],
    "every second row": lambda t: t[:, ::2],
    "neighbours": lambda t: torch.maximum(t[..., :-1:2], t[..., 1::2]),
    "neighbouring rows": lambda t: t[:, :-1:2] + t[:, 1::2],
    "backwards": lambda t: t.flip(-1),
    "cat": lambda t: torch.cat([t, t * 2], -1),
    "cat rows": lambda t: torch.cat([t, t * 2], 1),
    "padded": lambda t: F.pad(t, (1, 1)),
    "rolled": lambda t: t.roll(3, -1),
    "repeated": lambda t: t.repeat_interleave(2, -1),
    "differences": lambda t: t.diff(dim=-1),
    "windows": lambda t: t.unfold(-1, 4, 4).sum(-1),
    "stacked": lambda t: torch.stack([t, -t], -1).flatten(-2),
    "broadcast": lambda t: t * t[:1, :1] + t[:, :1],
}
OVER_AXES = {  # (tensor, axes) -> tensor
    "sum": lambda t, d: t.sum(d),
    "maximum": lambda t, d: t.amax(d),
    "range": lambda t, d: t.amax(d) - t.amin(d),
    "variance": lambda t, d: t.var(d),
    "norm": lambda t, d: t.norm(dim=d),
    "logsumexp": lambda t, d: torch.logsumexp(t, d),
    "count": lambda t, d: (t > 1).sum(d),
    "standardised": lambda t, d: (t - t.mean(d, keepdim=True)) / (t.std(d, keepdim=True) + 1e-5),
}
OVER_ONE = {
    "product": lambda t, d: (1 + t / 16).prod(d),
    "argmax": lambda t, d: t.argmax(d),
    "softmax": lambda t, d: t.softmax(d) * 2,
    "log_softmax": lambda t, d: t.log_softmax(d),
    "running sum": lambda t, d: t.cumsum(d) * 2,
    "normalised": lambda t, d: F.normalize(t, dim=d),
}
OF_PAIRS = {
    "squares": lambda a, b: (a - b) ** 2,
    "absolute": lambda a, b: (a - b).abs(),
    "relu": lambda a, b: (a + b).relu(),
    "tanh": lambda a, b: torch.tanh(a + b),
}
OVER_TERMS = ("sum", "maximum", "logsumexp")


@dataclass(frozen=True)
class Case:
    """`model` of random tensors of `shapes`; those named in `turned` lie column by column."""

    name: str
    model: Callable
    shapes: tuple[tuple[int, ...], ...]
    turned: tuple[int, ...] = ()


def _of_view(view, reduction, axes: Axes, t):
    return reduction(view(t) * 1.5, axes)


def _of_pairs(combine, reduction, a, b):
    return reduction(combine(a[:, None], b[None]), -1)


def compositions(device: str) -> Iterator[Case]:
    one, two = (0, 1, 2), ((0, 1), (0, 2), (1, 2))
    choices = [(r, axes) for r in OVER_AXES.items() for axes in one + two]
    choices += [(r, axis) for r in OVER_ONE.items() for axis in one]
    every = itertools.product(choices, VIEWS.items(), SIZES[device])
    for ((over, reduction), axes), (seen, view), shape in every:
        name = f"view: {over} over {axes} of {shape}, {seen}"
        yield Case(name, partial(_of_view, view, reduction, axes), (shape,))


def pairs(device: str) -> Iterator[Case]:
    every = itertools.product(OF_PAIRS.items(), OVER_TERMS, PAIRS[device], ((), (0,), (1,), (0, 1)))
    for (combined, combine), over, (rows, others, terms), turned in every:
        name = f"pairs: {over} of {combined}, {rows} x {others} x {terms}, turned {turned}"
        model = partial(_of_pairs, combine, OVER_AXES[over])
        yield Case(name, model, ((rows, terms), (others, terms)), turned)


def tensors(case: Case, device: str, dtype: torch.dtype) -> list[torch.Tensor]:
    made = []
    for number, shape in enumerate(case.shapes):
        turned = number in case.turned
        t = torch.randn(shape[::-1] if turned else shape, device=device, dtype=dtype)
        made.append(t.t() if turned else t)
    return made


def seconds(call: Callable, device: str) -> float:
    """Of one call, until its result is there."""
    start = time.perf_counter()
    call()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def timed(eager: Callable, ours: Callable, device: str) -> tuple[float, float]:
    """Medians, in turns."""
    found: tuple[list[float], list[float]] = ([], [])
    end = time.perf_counter() + 0.25
    while len(found[0]) < 5 or (time.perf_counter() < end and len(found[0]) < 51):
        for times, call in zip(found, (eager, ours)):
            times.append(seconds(call, device))
    return statistics.median(found[0]), statistics.median(found[1])


def wrong(expected: torch.Tensor, result: torch.Tensor) -> bool:
    """Far from eager's: rounding alone is another test's."""
    if not expected.is_floating_point():
        return (expected != result).float().mean().item() > 1e-3
    known = expected.isfinite() & result.isfinite()
    scale = expected[known].abs().max() if known.any() else 1.0
    far = (expected - result)[known].abs().max() > 0.02 * scale if known.any() else False
    return bool(far) or not torch.equal(expected.isnan(), result.isnan())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--seconds", type=float, default=60.0, help="Time budget.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="Part of a case's name.")
    parser.add_argument("--dtypes", default="float32")
    parser.add_argument("--slower-than", type=float, default=0.9, help="Eager's time over ours.")
    asked = parser.parse_args()
    warnings.simplefilter("ignore")  # of deviations of one element
    random.seed(asked.seed)
    torch.manual_seed(asked.seed)
    groups = [pairs(asked.device), compositions(asked.device)]
    cases = [c for group in groups for c in group if asked.only in c.name]
    random.shuffle(cases)
    dtypes = [getattr(torch, name) for name in asked.dtypes.split(",")]
    end, ratios = time.perf_counter() + asked.seconds, []
    for case, dtype in itertools.product(cases, dtypes):
        if time.perf_counter() > end:
            break
        ratios.append(_compared(case, dtype, asked.device, asked.slower_than))
    mean = math.exp(statistics.fmean(map(math.log, ratios)))
    print(f"{len(ratios)} cases, geometric mean {mean:.2f}, torch {torch.__version__}")


@torch.no_grad()
def _compared(case: Case, dtype: torch.dtype, device: str, least: float) -> float:
    """Eager's time over ours."""
    inputs = tensors(case, device, dtype)
    torch.compiler.reset()
    fused = torchweld.fuse(case.model)
    eager, ours = partial(case.model, *inputs), partial(fused, *inputs)
    if wrong(eager(), ours()):
        print(f"WRONG {case.name}, {dtype}", flush=True)
    ours()
    a, b = timed(eager, ours, device)
    if a / b < least:
        times = f"eager {a * 1e6:.0f} us, ours {b * 1e6:.0f}"
        print(f"{a / b:.2f} {case.name}, {dtype}: {times}", flush=True)
    return a / b


if __name__ == "__main__":
    main()
