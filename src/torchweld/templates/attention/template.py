"""Attention of few queries in one pass over the keys (schedule.py has the form)."""

from __future__ import annotations

from collections.abc import Iterator

from torchweld.codegen.source import KernelBundle
from torchweld.ir.size import hint
from torchweld.templates.attention import generate as code
from torchweld.templates.attention.comp import attention_comp
from torchweld.templates.attention.schedule import (
    LARGEST_HEAD,
    MOST_ROWS,
    SHORT,
    Attention,
    AttentionSchedule,
    attention_of,
    extent,
    schedule,
)
from torchweld.templates.pointwise_reduce.price import bytes_of
from torchweld.templates.template import Problem, Template

_SHARE = 0.35  # of the tensor cores' rate, between which and the softmax one block takes turns


def match(problem: Problem) -> Attention | None:
    return attention_of(problem.comp)


def supports(attention: Attention, problem: Problem) -> str | None:
    """More queries are for attention/gpu, which leaves out keys that a mask excludes."""
    a, comp = attention, problem.comp
    if not a.rows:
        return "one query, without an axis of its own"  # attention_comp leaves one (comp.py)
    rows, keys = extent(comp, a.rows), extent(comp, a.keys)
    heads = [extent(comp, axes) for axes in (a.depth, a.columns)]
    if not all(isinstance(size, int) for size in (rows, *heads)):
        return "sizes are known only at the call"
    if max(heads) > LARGEST_HEAD:
        return f"heads of {max(heads)}"
    short = isinstance(keys, int) and max(rows, keys) <= SHORT
    return None if rows <= MOST_ROWS or short else f"{rows} queries"


def candidates(attention: Attention, problem: Problem) -> Iterator[AttentionSchedule]:
    yield schedule(attention, problem.comp, problem.target.shared_bytes, problem.hints)


def price(attention: Attention, tiles: AttentionSchedule, problem: Problem) -> float:
    """A start, then both products or the operands' bytes, whichever takes longer. The Comp's own
    cost would count both products for each column of the result."""
    a, comp, hints, target = attention, problem.comp, problem.hints, problem.target
    batch, rows, keys, depth, columns = (
        hint(extent(comp, axes), hints) for axes in (a.batch, a.rows, a.keys, a.depth, a.columns)
    )
    products_s = batch * rows * keys * (depth + columns) / (_SHARE * target.tensor_fma_per_s)
    moved = sum(bytes_of(problem.buffers[n], hints) for n in {*comp.reads, *comp.writes})
    start_s = target.products.forms["stream"].start_us * 1e-6
    return start_s + max(products_s, moved / target.dram_bytes_per_s)


def generate(attention: Attention, tiles: AttentionSchedule, problem: Problem) -> KernelBundle:
    early = problem.target.begins_early
    return code.generate(problem.comp, problem.buffers, attention, tiles, early)


TEMPLATE = Template("attention", match, supports, candidates, price, generate, attention_comp)
