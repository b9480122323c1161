"""Fusions to be had: what the planner would do with the target, against what eager was seen to
spend.

The target is captured and planned, not compiled: its graphs run operation by operation.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch

from torchweld.capture import aot
from torchweld.capture.captured import Captured
from torchweld.capture.export_ import capture_export
from torchweld.core.grouped import grouped
from torchweld.core.options import Options
from torchweld.fused.later import takes
from torchweld.ir.index_check import CHECK_INDEX
from torchweld.ir.nodes import Graph, Node
from torchweld.observe.measure.subject import Subject
from torchweld.observe.predict.limits import predict_us
from torchweld.observe.predict.work import buffer_meta, node_work
from torchweld.observe.record.profile import Kernel, Opportunity, Place, Roofline
from torchweld.plan.decisions import Cut, Fusion, Plan
from torchweld.targets.target import Target
from torchweld.templates.pointwise_reduce.price import bytes_of

PlanOf = Callable[[Captured, Options], "tuple[Graph, Plan]"]

_AGREES = 2.0  # factor between two estimates of a saving that count as the same


@dataclass(frozen=True)
class Planned:
    """One captured graph, before and after planning."""

    before: Graph
    plan: Plan
    backward: bool


@dataclass(frozen=True)
class _Found:
    """A fusion with what is known of it. `vanishing`: (dtype and shape, bytes). `kernels`: of
    eager, by id, None if some are not found."""

    fusion: Fusion
    places: tuple[Place, ...]
    vanishing: tuple[tuple[str, int], ...]
    fused_us: float
    kernels: tuple[int, ...] | None


def planned_graphs(subject: Subject, plan_of: PlanOf, options: Options) -> list[Planned]:
    """Every graph of a step, planned: ahead of time where `fuse` would. Raises what capturing
    raises."""
    found: list[Planned] = []

    def compile_graph(captured: Captured, options: Options) -> aot.Boxed:
        before, plan = plan_of(captured, options)
        found.append(Planned(before, plan, captured.kind == "backward"))
        return aot.run_eagerly(captured.module)

    if subject.model is not None and not subject.train:
        try:
            capture_export(subject.model, subject.args, subject.kwargs, options, compile_graph)
            return found
        except Exception:  # whatever torch.export does not take: `fuse` takes torch.compile then
            found.clear()

    backend = aot.make_backend(compile_graph, options, takes=partial(takes, options))
    replace(subject, run=torch.compile(subject.run, backend=backend, dynamic=False)).step()
    return found


def opportunities(
    graphs: Iterable[Planned], kernels: Sequence[Kernel], line: Roofline, table: Target
) -> list[Opportunity]:
    """Every fusion of `graphs`, those of layers alike in one, the largest saving first. `kernels`:
    of the eager profile."""
    eager = _EagerKernels(kernels)
    found = [one for planned in graphs for one in _find_all(planned, eager, line, table)]
    made = [_opportunity(group, kernels) for group in grouped(found, _alike).values()]
    made.sort(key=lambda o: -o.saved_us)
    return [replace(o, rank=rank) for rank, o in enumerate(made, 1)]


class _EagerKernels:
    """Kernels by operation and module, those of one call together, each call taken once, in the
    order of the program. What a lowering makes of one operation in several parts gets the same
    call again."""

    def __init__(self, kernels: Sequence[Kernel]) -> None:
        self._waiting: dict[tuple, list[tuple[int, ...]]] = defaultdict(list)
        beside: dict[tuple, list[int]] = defaultdict(list)  # the longest of a call has its work
        for kernel in kernels:
            if kernel.bytes is None:
                beside[tuple(kernel.places), kernel.phase].append(kernel.id)
        for kernel in kernels:
            if kernel.places and kernel.bytes is not None:
                call = kernel.id, *beside[tuple(kernel.places), kernel.phase]
                key = _key(kernel.places[0], kernel.phase == "backward")
                self._waiting[key] += [call] * kernel.calls

    def take(self, place: Place, backward: bool) -> tuple[int, ...] | None:
        waiting = self._waiting.get(_key(place, backward))
        if not waiting:
            return None
        return waiting.pop(0) if len(waiting) > 1 else waiting[0]


def _key(place: Place, backward: bool) -> tuple:
    return _base(place.op), place.module, backward


def _base(op: str) -> str:
    """aten.add_.Tensor -> add;  aten._softmax.default -> softmax"""
    return op.removeprefix("aten.").partition(".")[0].strip("_")


def _find_all(
    planned: Planned, eager: _EagerKernels, line: Roofline, table: Target
) -> list[_Found]:
    """Of a node that was cut into pieces, the first fusion with a piece has the kernel."""
    before = {n.name: n for n in planned.before.nodes}
    cuts = [d for d in planned.plan.decisions if isinstance(d, Cut)]
    whole = {piece: cut.member for cut in cuts for piece in cut.kernels}
    rest = {cut.kernels[0]: cut.kernels[1:] for cut in cuts}
    after = {n.name: n for n in planned.plan.graph.nodes}
    seen: set[str] = set()
    found = []
    for fusion in planned.plan.fusions:
        members = dict.fromkeys(whole.get(m, m) for m in fusion.members)
        fresh = [before[m] for m in members if m in before and m not in seen]
        seen.update(members)
        taken = [eager.take(p, planned.backward) for n in fresh for p in _places(n)]
        known = None if None in taken else tuple(k for call in taken for k in call)
        kernels = [after[k] for k in (fusion.kernel, *rest.get(fusion.kernel, ())) if k in after]
        fused_us = sum(predict_us(node_work(k, planned.plan.graph), line, table) for k in kernels)
        places = tuple(p for m in members if m in before for p in _places(before[m]))
        vanishing = _vanishing(members, kernels, before, planned)
        found.append(_Found(fusion, places, vanishing, fused_us, known))
    return found


def _places(node: Node) -> list[Place]:
    """Of the operations that eager does, too."""
    return [Place.of(o) for o in node.origins if o.op != CHECK_INDEX]


def _vanishing(
    members: Iterable[str], kernels: Sequence[Node], before: Mapping[str, Node], planned: Planned
) -> tuple:
    """What the members write that no kernel writes any more: (dtype and shape, bytes) each. A
    result in the memory of an operand has lost its name, but is written."""
    graph, after = planned.before, planned.plan.graph
    written = dict.fromkeys(b for name in members if name in before for b in before[name].writes)
    gone = [b for b in written if b not in after.buffers]
    meta = {b: str(buffer_meta(graph.buffers[b], graph)) for b in gone}
    for buffer in (b for k in kernels for b in k.writes if b not in written):
        like = str(buffer_meta(after.buffers[buffer], after))
        gone.remove(next(b for b in reversed(gone) if meta[b] == like))
    return tuple((meta[b], bytes_of(graph.buffers[b], graph.hints)) for b in gone)


def _alike(found: _Found) -> tuple:
    ops = tuple(place.op for place in found.places)
    return ops, found.fusion.bytes_before, found.fusion.bytes_after


def _opportunity(group: list[_Found], kernels: Sequence[Kernel]) -> Opportunity:
    first = group[0]
    predicted = sum(f.fusion.saved_us for f in group)
    measured, confidence, because = _measured(group, kernels, predicted)
    fused = sum(f.fused_us for f in group)
    return Opportunity(
        rank=0,
        places=list(first.places),
        repeats=len(group),
        kernels=sorted({k for f in group for k in f.kernels or ()}),
        intermediates=[text for text, _ in first.vanishing],
        intermediate_bytes=sum(size for _, size in first.vanishing),
        saved_bytes=sum(f.fusion.bytes_before - f.fusion.bytes_after for f in group),
        saved_us=predicted if measured is None else max(0.0, measured - fused),
        measured_us=measured,
        confidence=confidence,
        because=because,
    )


def _measured(
    group: list[_Found], kernels: Sequence[Kernel], predicted_us: float
) -> tuple[float | None, str, str]:
    """(what eager spends on the group, confidence, why)."""
    if any(f.kernels is None for f in group):
        return None, "low", "not every operation was found among eager's kernels"
    spent = sum(kernels[k].measured_us for k in {k for f in group for k in f.kernels})
    saved = spent - sum(f.fused_us for f in group)
    if saved <= 0:
        return spent, "low", "eager is as fast as the fused kernel is predicted to be"
    factor = max(saved, predicted_us) / max(min(saved, predicted_us), 1e-9)
    if factor <= _AGREES:
        return spent, "high", f"measured and predicted savings agree within {factor:.1f}x"
    return spent, "medium", f"measured and predicted savings differ by {factor:.1f}x"

