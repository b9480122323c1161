"""Score nests on a GPU (templates/attention/nest.py has the form)."""

from __future__ import annotations

from collections.abc import Iterator

from torchweld.codegen.source import KernelBundle
from torchweld.core import dtypes
from torchweld.ir.contraction import TENSOR_DTYPES
from torchweld.ir.nodes import Load, needed
from torchweld.ir.size import product
from torchweld.templates.attention.comp import attention_comp
from torchweld.templates.attention.gpu import generate as code
from torchweld.templates.attention.gpu.price import seconds
from torchweld.templates.attention.gpu.schedule import (
    LARGEST_HEAD,
    NestSchedule,
    Work,
    candidates,
    shared_bytes,
)
from torchweld.templates.attention.nest import Nest, nest_of
from torchweld.templates.template import NO_SCHEDULE, Problem, Template

_DTYPES = TENSOR_DTYPES | {dtypes.f32}
_MONOIDS = ("max", "sum")
_MOST_TILES = 65535  # of one dimension of a grid


def match(problem: Problem) -> Nest | None:
    return nest_of(problem.comp)


def supports(nest: Nest, problem: Problem) -> str | None:
    checks = (_bad_device, _bad_dtype, _bad_width, bad_statistic, _bad_sharing, _bad_tiles)
    return next(filter(None, (check(nest, problem) for check in checks)), None)


def _bad_device(nest: Nest, problem: Problem) -> str | None:
    return None if problem.target.capability >= (8, 0) else "it needs the tensor cores of sm_80"


def _bad_dtype(nest: Nest, problem: Problem) -> str | None:
    body = problem.comp.body
    pairs = [(body[i.row].dtype, body[i.key].dtype) for i in nest.inners]
    if any(a != b or a not in _DTYPES for a, b in pairs):
        return "the factors of the scores are not all bfloat16 or all float16"
    good = all(body[o.key].dtype in _DTYPES for o in nest.outers)
    return None if good else "the values are neither bfloat16 nor float16"


def _bad_width(nest: Nest, problem: Problem) -> str | None:
    for axes in (*(i.depth for i in nest.inners), *(o.columns for o in nest.outers)):
        width = product(problem.comp.extent(a) for a in axes)
        if not isinstance(width, int):
            return "the size of a head is known only at the call"
        if width > LARGEST_HEAD:
            return f"heads of {width} are too large"
    return None


def bad_statistic(nest: Nest, problem: Problem) -> str | None:
    reduces = [problem.comp.body[v] for v in nest.statistics]
    good = all(i.monoid in _MONOIDS and i.dtype == dtypes.f32 for i in reduces)
    return None if good else "a statistic that is no maximum and no sum"


def _bad_sharing(nest: Nest, problem: Problem) -> str | None:
    """A tile that a product takes from shared memory and that is also read into registers has a
    slot too few there in Triton 3.6 and 3.7 (templates/gemm/triton/schedule.py)."""
    body = problem.comp.body
    factors = {v for p in nest.inners for v in (p.row, p.key)} | {o.key for o in nest.outers}
    plain = {v for v in factors if isinstance(body[v], Load) and body[v].guard is None}
    shared = plain & needed(body, factors - plain)
    return "a factor is computed from another one" if shared else None


def _bad_tiles(nest: Nest, problem: Problem) -> str | None:
    work = work_of(nest, problem)
    s = next(candidates(work), None)
    if s is None:
        return NO_SCHEDULE
    if shared_bytes(work, s) > problem.target.shared_bytes:
        return "the tiles do not fit in shared memory"
    if work.points(s.rows) > _MOST_TILES * s.block_rows:
        return "too many tiles of rows for one grid"
    return None


def work_of(nest: Nest, problem: Problem) -> Work:
    return Work(problem.comp, problem.buffers, nest, problem.target, problem.hints)


def schedules(nest: Nest, problem: Problem) -> Iterator[NestSchedule]:
    yield from candidates(work_of(nest, problem))


def price(nest: Nest, schedule: NestSchedule, problem: Problem) -> float:
    return seconds(work_of(nest, problem), schedule)


def generate(nest: Nest, schedule: NestSchedule, problem: Problem) -> KernelBundle:
    early = problem.target.begins_early
    return code.generate(problem.comp, problem.buffers, nest, schedule, early)


TEMPLATE = Template("attention/gpu", match, supports, schedules, price, generate, attention_comp)
