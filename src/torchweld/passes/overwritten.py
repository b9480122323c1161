"""Pointwise kernels write into the memory of an operand that ends there.

    h = addmm(...);  comp y[i, j] = gelu(h[i, j]);  mm(y, ...)
 -> h = addmm(...);  comp h[i, j] = gelu(h[i, j]);  mm(h, ...)

Half as much memory is touched: a line that was read is in the cache when it is written, and need
not be fetched to be overwritten. The operand is a temporary that one kernel, product or convolution
made, and has the layout and dtype of the result. If the result is returned, the operand is made in
its memory. So do calls that change a few elements of an operand, of which ATen would copy the rest:

    comp z = 0;  y = scatter_add(z, d, index, x)   ->   comp y = 0;  scatter_add_(y, d, index, x)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from torchweld.ir.in_place import is_in_place
from torchweld.ir.nodes import Buffer, Comp, Extern, Graph, Load, Store, View, views
from torchweld.ir.parts import parts
from torchweld.rewrite.flow import output_buffers, rename, rename_args, without_unused_buffers
from torchweld.templates.gemm.comp import is_product
from torchweld.templates.library.calls import LINEAR

_CONVOLUTION = "aten.convolution.default"


_CHANGING = {
    "aten.index_add.default": "aten.index_add_.default",
    "aten.index_copy.default": "aten.index_copy_.default",
    "aten.index_put.default": "aten.index_put_.default",
    "aten.scatter.src": "aten.scatter_.src",
    "aten.scatter.value": "aten.scatter_.value",
    "aten.scatter_add.default": "aten.scatter_add_.default",
    "aten.scatter_reduce.two": "aten.scatter_reduce_.two",
}


def _makes_memory(call: Extern) -> bool:
    """Whether a call's result is memory of its own, and of nobody else."""
    return is_product(call) or call.target in (LINEAR, _CONVOLUTION)


@dataclass(frozen=True)
class _Uses:
    """Of each buffer: the positions of the nodes that write it, and of the last one to touch it.
    `fixed`: inputs; `returned`: outputs."""

    graph: Graph
    writers: Mapping[str, tuple[int, ...]]
    last: Mapping[str, int]
    fixed: frozenset[str]
    returned: frozenset[str]

    @classmethod
    def of(cls, graph: Graph) -> _Uses:
        writers: dict[str, tuple[int, ...]] = {}
        last: dict[str, int] = {}
        for position, node in enumerate(graph.nodes):
            for name in set(node.writes):
                writers[name] = (*writers.get(name, ()), position)
            last.update(dict.fromkeys((*node.reads, *node.writes), position))
        fixed = frozenset(i for i in graph.inputs if i)
        return cls(graph, writers, last, fixed, frozenset(output_buffers(graph)))

    def ends_at(self, name: str, position: int) -> bool:
        """A temporary made by one node, in memory that nobody else has, last read at `position`."""
        writers = self.writers.get(name, ())
        if name in self.fixed or name in self.returned or len(writers) != 1:
            return False
        if self.last[name] != position:
            return False
        maker = self.graph.nodes[writers[0]]
        return not isinstance(maker, Extern) or (_makes_memory(maker) and not maker.mutates)

    def begins_at(self, name: str, position: int) -> bool:
        return name not in self.fixed and self.writers[name] == (position,)


def overwrite_operands(graph: Graph) -> Graph:
    """`graph` with fewer buffers: results of pointwise kernels in the place of operands."""
    uses = _Uses.of(graph)
    names: dict[str, str] = {}
    nodes = list(graph.nodes)
    for position, node in enumerate(graph.nodes):
        if isinstance(node, Comp) and len(parts(node)) == 1:
            names |= _taken(node, position, uses)
        elif isinstance(node, Extern) and _may_change(node, position, uses):
            operand = node.args[0].buffer
            names[node.outputs[0]] = operand
            nodes[position] = replace(
                node, target=_CHANGING[node.target], outputs=(), mutates=(operand,)
            )
    return _renamed(replace(graph, nodes=tuple(nodes)), names, uses.returned) if names else graph


def _may_change(call: Extern, position: int, uses: _Uses) -> bool:
    """Whether a call may write its result into its first operand."""
    if call.target not in _CHANGING or call.mutates or call.outputs[0] is None:
        return False
    operand, buffers = call.args[0], uses.graph.buffers
    if not uses.ends_at(operand.buffer, position) or not uses.begins_at(call.outputs[0], position):
        return False
    given, result = buffers[operand.buffer], buffers[call.outputs[0]]
    whole = operand == View(given.name, given.shape, given.strides)
    others = (*call.args[1:], *(value for _, value in call.kwargs))
    return _alike(given, result) and whole and given.name not in {v.buffer for v in views(others)}


def _alike(given: Buffer, result: Buffer) -> bool:
    return replace(given, name=result.name, frozen=result.frozen) == result


def _taken(comp: Comp, position: int, uses: _Uses) -> dict[str, str]:
    """The operand whose memory each result takes, by the result."""
    free = [name for name in comp.reads if uses.ends_at(name, position)]
    found: dict[str, str] = {}
    for store in comp.stores:
        if uses.begins_at(store.buffer, position):
            fits = _goes_on if isinstance(store.init, str) else _fits
            fitting = (name for name in free if fits(comp, store, name, uses.graph.buffers))
            operand = next(fitting, None)
            if operand is not None:
                free.remove(operand)
                found[store.buffer] = operand
    return found


def _fits(comp: Comp, store: Store, operand: str, buffers: Mapping[str, Buffer]) -> bool:
    """Whether `comp` may store to `operand`, each point where it reads. Not if it stores several
    parts: one is stored where another's operand may be."""
    if sum(s.buffer == store.buffer for s in comp.stores) > 1:
        return False
    if not _alike(buffers[operand], buffers[store.buffer]):
        return False
    moved = replace(store, buffer=operand)
    stores = tuple(moved if s is store else s for s in comp.stores)
    return is_in_place(replace(comp, stores=stores), moved)


def _goes_on(comp: Comp, store: Store, operand: str, buffers: Mapping[str, Buffer]) -> bool:
    """Whether `operand` is what the result begins as, and nothing else in `comp`."""
    same = {s.init for s in comp.stores if s.buffer == store.buffer} == {operand}
    others = [i.buffer for i in comp.body if isinstance(i, Load)]
    others += [s.init for s in comp.stores if s.buffer != store.buffer]
    return same and operand not in others and _alike(buffers[operand], buffers[store.buffer])


def _renamed(graph: Graph, names: Mapping[str, str], returned: frozenset[str]) -> Graph:
    """Chains of names are followed to their first. Memory that is returned keeps its own name."""
    first: dict[str, str] = {}
    for result, operand in names.items():
        first[result] = first.get(operand, operand)
    kept = {origin: result for result, origin in first.items() if result in returned}
    final = {name: kept.get(origin, origin) for name, origin in first.items()} | kept
    nodes = tuple(rename(node, final) for node in graph.nodes)
    outputs = rename_args(graph.outputs, final)
    return without_unused_buffers(replace(graph, nodes=nodes, outputs=outputs))
