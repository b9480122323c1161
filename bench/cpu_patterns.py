"""Single operations on the CPU, forward or with their gradients: torchweld against eager and
torch.compile, paired in one process.

OMP_NUM_THREADS=1 python bench/cpu_patterns.py [--rounds 20] [--only NAME ...]

Each round runs every way once, in turn; the ratios are medians over rounds. Times are of the
process on its processors, which other work on the machine does not disturb.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn import functional as F

import torchweld
from cpu_kernels import Function, keep_freed_memory

B16 = torch.bfloat16
MATRIX, IMAGE, ROWS = (4096, 1024), (16, 64, 56, 56), (64, 64, 1000)


@dataclass(frozen=True)
class Case:
    name: str
    run: Callable
    shapes: tuple[tuple[int, ...], ...]
    train: bool
    dtype: torch.dtype = torch.float32

    def inputs(self) -> list[torch.Tensor]:
        torch.manual_seed(0)
        made = [torch.randn(s).to(self.dtype) for s in self.shapes]
        return [x.requires_grad_() for x in made] if self.train else made


def rounded(x):
    return (x.relu() * 1.5).half().float() * 2 + 1


def to_float8(x):
    """Rows with a scale each."""
    scale = x.abs().amax(-1, keepdim=True).float().clamp(min=1e-12) / 448
    return (x.float() / scale).clamp(-448, 448).to(torch.float8_e4m3fn), scale


def normed_to_float8(x):
    return to_float8(F.rms_norm(x, x.shape[-1:]))


def round_trip(x):
    return x.to(torch.float8_e4m3fn).to(x.dtype) * 2


def normed_channels(x):
    """Into channels last, as eager has it."""
    return F.layer_norm(x.permute(0, 2, 3, 1), x.shape[1:2]).permute(0, 3, 1, 2)


def sums_to_the_right(x):
    """Without each element itself."""
    return x.flip(1).cumsum(1).flip(1) - x


def dispatched(x, at):
    """Rows into places, of which a quarter gets one twice."""
    place = (at.argsort() * 3 // 4)[:, None].expand_as(x)
    return torch.zeros_like(x).scatter(0, place, x * at[:, None])


CASES = (
    *(Case(f"norm of channels, {'x'.join(map(str, s))}", normed_channels, (s,), False)
      for s in ((53, 768, 14, 14), (13, 1500, 20, 20), (12, 2006, 1, 311), (15, 512, 32, 32),
                (26, 384, 28, 28), (12, 64, 100, 100))),
    Case("softmax of channels", lambda x: x.softmax(1), ((15, 512, 32, 32),), False),
    Case("sums to the right", sums_to_the_right, ((2063, 2999),), False),
    Case("rows into places", dispatched, ((20011, 390), (20011,)), False),
    Case("adaptive average to 7 x 7", lambda x: F.adaptive_avg_pool2d(x, 7),
         ((16, 256, 56, 56),), False),
    Case("average 7 x 7", lambda x: F.avg_pool2d(x, 7), ((8, 64, 56, 56),), False),
    Case("average 5 x 5", lambda x: F.avg_pool2d(x, 5), ((8, 64, 55, 55),), False),
    Case("nearest, twice the size", lambda x: F.interpolate(x, scale_factor=2),
         ((16, 64, 28, 28),), False),
    Case("float16 and back", rounded, (MATRIX,), False),
    Case("float16 and back, odd", rounded, ((1001, 1023),), False),
    Case("float8 and back", round_trip, (MATRIX,), False, B16),
    Case("rows to float8", to_float8, (MATRIX,), False),
    Case("rows to float8, bfloat16", to_float8, (MATRIX,), False, B16),
    Case("RMSNorm, rows to float8, bfloat16", normed_to_float8, (MATRIX,), False, B16),
    Case("mse_loss", F.mse_loss, (MATRIX,) * 2, True),
    Case("mse_loss, bfloat16", F.mse_loss, (MATRIX,) * 2, True, B16),
    Case("triplet loss", F.triplet_margin_loss, (MATRIX,) * 3, True),
    Case("triplet loss, odd", F.triplet_margin_loss, ((1001, 257),) * 3, True),
    Case("max_pool1d 2", lambda x: F.max_pool1d(x, 2), (ROWS,), True),
    Case("max_pool1d 2, bfloat16", lambda x: F.max_pool1d(x, 2), (ROWS,), True, B16),
    Case("max_pool1d 3, steps of 2, odd", lambda x: F.max_pool1d(x, 3, 2, 1),
         ((64, 64, 1001),), True),
    Case("max_pool2d 2", lambda x: F.max_pool2d(x, 2), (IMAGE,), True),
    Case("max_pool2d 3, steps of 2", lambda x: F.max_pool2d(x, 3, 2, 1), (IMAGE,), True),
    Case("avg_pool2d 3, steps of 2", lambda x: F.avg_pool2d(x, 3, 2, 1), (IMAGE,), True),
)  # fmt: skip


def ways(case: Case, inputs: list[torch.Tensor]) -> dict[str, Callable]:
    torch._dynamo.reset()
    return {
        "eager": Function(case.run),
        "torch.compile": torch.compile(Function(case.run)),
        "torchweld": torchweld.fuse(Function(case.run), tuple(inputs)),
    }


def once(case: Case, call: Callable, inputs: list[torch.Tensor]) -> float:
    """Milliseconds of one call, with the gradients of all inputs."""
    start = time.process_time()
    result = call(*inputs)
    if case.train:
        torch.autograd.grad(result, inputs, torch.ones_like(result))
    return 1e3 * (time.process_time() - start)


def measured(case: Case, rounds: int) -> dict[str, list[float]]:
    inputs = case.inputs()
    calls = ways(case, inputs)
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds + 3):
        for name, call in calls.items():
            times[name].append(once(case, call, inputs))
    return {name: found[3:] for name, found in times.items()}


def row(case: Case, times: dict[str, list[float]]) -> str:
    ours = times["torchweld"]
    medians = (f"{statistics.median(found):.2f}" for found in times.values())
    ratios = (statistics.median(a / b for a, b in zip(times[w], ours)) for w in times)
    kind = "training" if case.train else "forward"
    *others, _ = (f"{r:.2f}" for r in ratios)
    return f"| {case.name} | {kind} | {' | '.join((*medians, *others))} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--only", nargs="*")
    given = parser.parse_args()
    keep_freed_memory()
    print("| what | | eager | torch.compile | torchweld | of eager | of torch.compile |")
    print("|---|---|---|---|---|---|---|")
    for case in CASES:
        if not given.only or any(name in case.name for name in given.only):
            print(row(case, measured(case, given.rounds)), flush=True)


if __name__ == "__main__":
    main()
