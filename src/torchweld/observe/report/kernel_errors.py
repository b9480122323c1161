"""The error of each fused kernel alone: run on random numbers, beside the same operations run by
ATen, both against float64."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod

import torch
from torch import Tensor

from torchweld.codegen.source import KernelBundle
from torchweld.core.events import record as record_event
from torchweld.core.options import Options
from torchweld.exact.budget import TensorError, measure
from torchweld.ir.interpret import allocate, run_comp
from torchweld.ir.nodes import Buffer, Comp, Graph, Symbol
from torchweld.ir.size import evaluate
from torchweld.observe.record.report import GraphPart, Group, KernelError
from torchweld.runtime.load import load
from torchweld.runtime.record import Note

MOST_ELEMENTS = 2**24  # of a kernel's buffers together; larger ones are not measured
SEED = 0


def with_kernel_errors(parts: Sequence[GraphPart], records: Sequence) -> list[GraphPart]:
    """`parts`: of `records`, in the same order."""
    return [_with_errors(part, record) for part, record in zip(parts, records)]


def _with_errors(part: GraphPart, record) -> GraphPart:
    comps = {node.name: node for node in record.graph.nodes if isinstance(node, Comp)}

    def measured(group: Group) -> Group:
        comp, bundle = comps.get(group.kernel), record.bundles.get(group.kernel)
        if comp is None or bundle is None:
            return group
        try:
            return replace(group, error=kernel_error(comp, bundle, record.graph))
        except (RuntimeError, IndexError) as error:  # memory, or numbers that it was not made for
            said = str(error).partition("\n")[0]
            record_event(f"error of {comp.name}", f"{comp.name} was not checked alone: {said}")
            return group

    return replace(part, groups=[measured(group) for group in part.groups])


def kernel_error(comp: Comp, bundle: KernelBundle, graph: Graph) -> KernelError | None:
    """None if it computes no floats, is too large, or did not compile and runs as ATen's
    operations."""
    alone = _alone(comp, graph)
    sizes = graph.hints
    if sum(_elements(b, sizes) for b in alone.buffers.values()) > MOST_ELEMENTS:
        return None
    given = _random_inputs(comp, alone.buffers, sizes)
    kernel = _run_kernel(alone, bundle, given)
    if kernel is None:
        return None
    aten = run_comp(comp, _copies(given), alone.buffers, sizes)
    exact = run_comp(comp, _wide(given), alone.buffers, sizes, exact=True)
    errors = [measure(n, kernel[n], aten[n], exact[n]) for n in comp.writes]
    return _worst([e for e in errors if e.ok and e.count])


def _alone(comp: Comp, graph: Graph) -> Graph:
    """A graph of this kernel, whose inputs are its sizes and what it reads."""
    names = dict.fromkeys((*comp.reads, *comp.writes))
    symbols = tuple(
        Symbol(s.name, ("int", position), s.hint) for position, s in enumerate(graph.symbols)
    )
    buffers = {name: replace(graph.buffers[name], frozen=False) for name in names}
    views = tuple(buffers[name].view for name in comp.writes)
    inputs = (*(None for _ in symbols), *comp.reads)
    return Graph(comp.name, symbols, buffers, (comp,), inputs, views)


def _elements(buffer: Buffer, sizes: Mapping[str, int]) -> int:
    return prod(evaluate(size, sizes) for size in buffer.shape)


def _random_inputs(
    comp: Comp, buffers: Mapping[str, Buffer], sizes: Mapping[str, int]
) -> dict[str, Tensor]:
    """Normal numbers; integers from 0 to 7, which a kernel that indexes clamps."""
    generator = torch.Generator().manual_seed(SEED)
    found = {}
    for name in comp.reads:
        buffer = buffers[name]
        into = allocate(buffer, sizes, torch.device(buffer.device), exact=False)
        if into.is_floating_point():
            values = torch.randn(into.shape, generator=generator)
        else:
            values = torch.randint(0, 8, into.shape, generator=generator)
        found[name] = into.copy_(values)
    return found


@dataclass(frozen=True)
class _Notes:
    """What the runtime has to tell of a kernel."""

    events: list[Note] = field(default_factory=list)


def _run_kernel(
    graph: Graph, bundle: KernelBundle, given: Mapping[str, Tensor]
) -> dict[str, Tensor] | None:
    """None if it did not compile."""
    notes = _Notes()
    program = load(graph, {bundle.comp: bundle}, {}, Options(cuda_graphs=False), record=notes)
    if any(event.kind == "fallback" for event in notes.events):
        return None
    inputs = _copies(given)
    sizes = [symbol.hint for symbol in graph.symbols]
    outputs = program([*sizes, *(inputs[name] for name in graph.inputs if name)])
    return dict(zip(graph.nodes[0].writes, outputs))


def _copies(given: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Kernels may write to what they read."""
    return {name: tensor.clone() for name, tensor in given.items()}


def _wide(given: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {n: t.double() if t.is_floating_point() else t.clone() for n, t in given.items()}


def _worst(errors: Sequence[TensorError]) -> KernelError | None:
    """Each figure that of the result where it is largest."""
    if not errors:
        return None
    scaled = [(e, e.scale or 1.0) for e in errors]
    return KernelError(
        fused_l2=max(e.fused_l2 for e in errors),
        aten_l2=max(e.eager_l2 for e in errors),
        fused_max=max(e.fused_max / scale for e, scale in scaled),
        aten_max=max(e.eager_max / scale for e, scale in scaled),
    )
