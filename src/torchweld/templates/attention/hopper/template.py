"""Score nests on Hopper's asynchronous units (templates/attention/nest.py has the form)."""

from __future__ import annotations

from collections.abc import Iterator

from torchweld.codegen.source import KernelBundle
from torchweld.ir.access import unmerged
from torchweld.ir.contraction import TENSOR_DTYPES
from torchweld.ir.nodes import Op, value_axes
from torchweld.templates.attention.comp import attention_comp
from torchweld.templates.attention.gpu import schedule as gpu
from torchweld.templates.attention.gpu.schedule import is_fast
from torchweld.templates.attention.gpu.template import bad_statistic, work_of
from torchweld.templates.attention.hopper import generate as code
from torchweld.templates.attention.hopper.price import seconds
from torchweld.templates.attention.hopper.schedule import (
    ROWS,
    HopperSchedule,
    candidates,
    dimensions_of,
    fits,
    tiles,
    windows_of,
)
from torchweld.templates.attention.nest import Nest, nest_of
from torchweld.templates.pointwise_reduce.gpu.emit import is_wide
from torchweld.templates.template import Problem, Template


def match(problem: Problem) -> Nest | None:
    return nest_of(problem.comp)


def supports(nest: Nest, problem: Problem) -> str | None:
    checks = (
        _bad_device, _bad_form, _bad_dtype, bad_statistic, _bad_scores, _bad_tiles,
    )  # fmt: skip
    return next(filter(None, (check(nest, problem) for check in checks)), None)


def _bad_device(nest: Nest, problem: Problem) -> str | None:
    target = problem.target
    return None if target.capability[0] == 9 else f"{target.name} is no Hopper GPU"


def _bad_form(nest: Nest, problem: Problem) -> str | None:
    if len(nest.walks) != 1:
        return "more than one walk over the keys"
    if len(nest.keys) != 1:
        return "keys along several axes"
    every = all(isinstance(a.extent, int) for a in problem.comp.axes)
    return None if every else "a size is known only at the call"


def _bad_dtype(nest: Nest, problem: Problem) -> str | None:
    body = problem.comp.body
    pairs = [(body[i.row].dtype, body[i.key].dtype) for i in nest.inners]
    good = all(a == b and a in TENSOR_DTYPES for a, b in pairs)
    good &= all(body[o.key].dtype in TENSOR_DTYPES for o in nest.outers)
    return None if good else "factors that are neither all bfloat16 nor all float16"


def _bad_scores(nest: Nest, problem: Problem) -> str | None:
    comp, axes = problem.comp, value_axes(problem.comp.body)
    if not is_fast(comp, nest):
        return "something discrete is decided by the scores"
    if any(isinstance(i, Op) and i.name == "philox" for i in comp.body):
        return "random numbers take the registers"
    if not all(axes[o.weight] >= {*nest.rows, *nest.keys} for o in nest.outers):
        return "a weight is the same for all rows or keys"
    return None


def _bad_tiles(nest: Nest, problem: Problem) -> str | None:
    work = work_of(nest, problem)
    s = next(candidates(work), None)
    if s is None:
        return "too many or too wide products for the registers"
    if not fits(work, s):
        return "the tiles do not fit in shared memory"
    if work.points(s.rows) < ROWS or 2 * tiles(work, s) < problem.target.units:
        return "too few rows"
    accesses = unmerged(problem.comp, problem.buffers)
    if is_wide(accesses, problem.buffers, dimensions_of(nest, s)):
        return "offsets have more than 32 bits"
    windows = windows_of(accesses, nest, s)
    return windows if isinstance(windows, str) else None


def schedules(nest: Nest, problem: Problem) -> Iterator[HopperSchedule]:
    yield from candidates(work_of(nest, problem))


def price(nest: Nest, schedule: HopperSchedule, problem: Problem) -> float:
    return seconds(work_of(nest, problem), schedule)


def generate(nest: Nest, schedule: HopperSchedule, problem: Problem) -> KernelBundle:
    windows = windows_of(unmerged(problem.comp, problem.buffers), nest, schedule)
    otherwise = next(gpu.candidates(work_of(nest, problem)))
    return code.generate(problem.comp, problem.buffers, nest, schedule, windows, otherwise)


TEMPLATE = Template("attention/hopper", match, supports, schedules, price, generate, attention_comp)
