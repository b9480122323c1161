"""Sums of runs on the CPU, by Triton's interpreter: one line for each result. Small tiles, so that
runs begin, go on and end in several; what they leave is added up by a program for each tile first,
or by one with several steps."""

from __future__ import annotations

import itertools

import torch

import runs_cases as cases
from torchweld.templates.runs import form
from triton_cases import Case, expected, tensors
from triton_interpreted import agree, start
from triton_run import launches, prepare


def interpret(case: Case, stretches: int) -> torch.Tensor:
    made, bundle = tensors(case), cases.bundle_of(case, 16 // stretches, stretches)
    prepare(case, bundle, made)
    launches(case, bundle, made, start)
    return made["y"]


def hard() -> Case:
    """Numbers of many sizes, some of which cancel, a NaN and an infinity: each run for itself."""
    torch.manual_seed(0)
    x = torch.randn(1, 60, 4) * 10.0 ** torch.randint(-6, 7, (1, 60, 4))
    x[:, ::2] = -x[:, 1::2] * (1 + 1e-3)
    x[0, 7, 1], x[0, 9, 2] = float("nan"), float("inf")
    return cases.runs(cases.drawn(60, 9), 9, (1, 4), fill={"x": x})


def is_near(case: Case, got: torch.Tensor) -> bool:
    """Within what the float32 sum of so many numbers may be off."""
    given = {n: t.double() if t.is_floating_point() else t for n, t in tensors(case).items()}
    exact = expected(case, given, exact=True)["y"]
    sizes = expected(case, given | {"x": given["x"].abs()}, exact=True)["y"]
    finite = exact.isfinite()
    same = torch.equal(got.double()[~finite].nan_to_num(7), exact[~finite].nan_to_num(7))
    return same and bool(((got - exact).abs() <= 2.0**-20 * sizes)[finite].all())


def main() -> None:
    form._ENTRIES = 16
    for tiles, (number, case) in itertools.product((1, 1000), enumerate(cases.ALL)):
        form._TILES = tiles
        wanted = expected(case, tensors(case), exact=False)["y"]
        good = agree(interpret(case, 1 + number % 2), wanted)
        print("agrees" if good else "DIFFERS", case.name, tiles, flush=True)
    for stretches in (1, 2):
        case = hard()
        good = is_near(case, interpret(case, stretches))
        print("agrees" if good else "DIFFERS", "hard", stretches, flush=True)


if __name__ == "__main__":
    main()
