"""Triton source of a planned Comp: one kernel, or two where a reduction is shared by several
programs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from torchweld.codegen.source import KernelBundle, KernelSource
from torchweld.core.errors import InvalidIR
from torchweld.ir.access import Accesses, addressed
from torchweld.ir.nodes import Buffer, Comp, Scan
from torchweld.templates.pointwise_reduce.gpu.default import default
from torchweld.templates.pointwise_reduce.gpu.emit import Kernel
from torchweld.templates.pointwise_reduce.gpu.forms import FORMS
from torchweld.templates.pointwise_reduce.gpu.partials import Finish, Partial, finish
from torchweld.templates.pointwise_reduce.gpu.schedule import Schedule, valid

_SM_COUNT = 132  # of an H100; it only shapes the small kernels that merge partial results


def generate(
    comp: Comp,
    buffers: Mapping[str, Buffer],
    schedule: Schedule,
    hints: Mapping[str, int] | None = None,
    early: bool = False,
) -> KernelBundle:
    """The kernels of `comp`, tiled by `schedule` (of schedule.py). `hints`: typical values of
    symbols. `early`: for Hopper; their blocks start while the kernel before still runs, and wait
    for its end.

    Raises InvalidIR if the schedule does not fit the Comp.
    """
    accesses = addressed(comp, buffers, hints)
    if not valid(schedule, accesses):
        raise InvalidIR(f"{comp.name} cannot be tiled so: {schedule}")
    prefill = tuple(dict((s.buffer, s.init) for s in comp.stores if s.init is not None).items())
    if schedule.splits == 1:
        only = _source(accesses, buffers, schedule, (), early)
        return KernelBundle(comp.name, (only,), prefill=prefill)
    second = finish(accesses, buffers, schedule.splits)
    first = _source(accesses, {**buffers, **second.buffers}, schedule, second.partials, early)
    merge = finishing_source(second, hints, early)
    scratch = tuple(b for p in second.partials for b in p.scratch)
    return KernelBundle(comp.name, (first, merge), scratch, prefill=prefill)


def _source(
    accesses: Accesses,
    buffers: Mapping[str, Buffer],
    schedule: Schedule,
    partials: tuple[Partial, ...],
    early: bool,
) -> KernelSource:
    kernel = Kernel(accesses, buffers, schedule)
    kernel.pointers_of_rows = not any(isinstance(i, Scan) for i in accesses.comp.body)
    if early:
        kernel.line(kernel.helper("_await_previous()"))
    return replace(kernel.source(FORMS[schedule.form](kernel, partials)), early=early)


def finishing_source(
    second: Finish, hints: Mapping[str, int] | None = None, early: bool = False
) -> KernelSource:
    """The merge of partial results, never split again."""
    accesses = addressed(second.comp, second.buffers, hints)
    schedule = default(accesses, hints or {}, _SM_COUNT, split=False)
    return _source(accesses, second.buffers, schedule, (), early)
