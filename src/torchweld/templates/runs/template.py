"""Sums by index in one order (form.py), in two or three kernels (generate.py). A GPU's."""

from __future__ import annotations

from collections.abc import Iterator

from torchweld.codegen.source import KernelBundle
from torchweld.ir.frame import frame_of
from torchweld.ir.nodes import Ref
from torchweld.templates.pointwise_reduce.gpu.prepare import prepared
from torchweld.templates.pointwise_reduce.price import cost
from torchweld.templates.runs import generate as code
from torchweld.templates.runs.form import Runs, Walk, levels_of, runs_of, walk_of
from torchweld.templates.template import Problem, Template, no_reference

_PARTIAL_BYTES = 4


def match(problem: Problem) -> Runs | None:
    comp = problem.comp
    if not any(s.combine == "add_runs" for s in comp.stores) or frame_of(comp) is None:
        return None
    store, shape = comp.stores[0], problem.buffers[comp.stores[0].buffer].shape
    sizes = tuple(n for n, i in zip(shape, store.index) if isinstance(i, Ref))
    return runs_of(prepared(problem).accesses, sizes)


def supports(runs: Runs, problem: Problem) -> str | None:
    return None


def candidates(runs: Runs, problem: Problem) -> Iterator[Walk]:
    yield walk_of(runs, problem.target.units)


def price(runs: Runs, walk: Walk, problem: Problem) -> float:
    """What is left is written, read and added in launches of their own."""
    device = problem.target
    levels = levels_of(runs, walk, device.units)
    left = 2 * sum(level.entries for level in levels) * runs.width * _PARTIAL_BYTES
    once = cost(problem.comp, problem.buffers, problem.hints, device).seconds
    return once + len(levels) * device.launch_s + left / device.llc_bytes_per_s


def generate(runs: Runs, walk: Walk, problem: Problem) -> KernelBundle:
    return code.generate(runs, walk, problem.buffers, problem.target.units)


TEMPLATE = Template("runs", match, supports, candidates, price, generate, no_reference)
