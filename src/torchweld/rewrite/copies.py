"""Copies that move nothing: what reads the copy reads the original.

comp copy [i:4, j:6] {
  %0 = load x[i, j] : f32          x and y have element [i, j] at the same offset
  store y[i, j] %0
}
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from torchweld.ir import affine
from torchweld.ir.affine import Affine
from torchweld.ir.nodes import (
    Buffer,
    Comp,
    Extern,
    Graph,
    IndexMap,
    Load,
    Node,
    Ref,
)
from torchweld.rewrite.flow import mutated_buffers, output_buffers, rename, rename_args


@dataclass(frozen=True, slots=True)
class Alias:
    """Element [a, b, ...] of the copy is element `index` of `source`, an index map over the axes
    `dims`."""

    source: str
    dims: tuple[str, ...]
    index: IndexMap


def skip_copies(graph: Graph) -> Graph:
    """A copy with the memory layout of its source goes, unless an output must be a tensor of its
    own."""
    mutable, outputs = mutated_buffers(graph), output_buffers(graph)
    fixed = {i for i in graph.inputs if i} | outputs
    aliases: dict[str, Alias] = {}
    kept: list[Node] = []
    for position, node in enumerate(graph.nodes):
        node = _read_sources(node, aliases)
        alias = _alias_of(node, graph.buffers)
        copy = node.writes[0] if alias else None
        if (
            alias is None
            or mutable.intersection((alias.source, copy))
            or (copy in outputs and alias.source in fixed)
            or not _readable(copy, alias, graph.nodes[position:])
        ):
            kept.append(node)
            continue
        aliases[copy] = alias
        if copy in outputs:
            fixed.add(alias.source)
    names = {copy: alias.source for copy, alias in aliases.items()}
    return replace(graph, nodes=tuple(kept), outputs=rename_args(graph.outputs, names))


def _alias_of(node: Node, buffers: Mapping[str, Buffer]) -> Alias | None:
    """What `node` copies, if it is a copy into the layout that its source has."""
    if not isinstance(node, Comp) or len(node.body) != 1 or len(node.stores) != 1:
        return None
    (load,), (store,) = node.body, node.stores
    plain = (
        isinstance(load, Load) and load.guard is None and store.guard is None and not store.combine
    )
    if not plain or any(isinstance(e, Ref) for e in (*load.index, *store.index)):
        return None
    source, copy = buffers[load.buffer], buffers[store.buffer]
    dims = tuple(e.as_axis or "" for e in store.index)
    extents = tuple(node.extent(d) if d else None for d in dims)
    whole = extents == copy.shape and len(set(dims)) == len(dims)
    alike = (source.dtype, source.device) == (copy.dtype, copy.device)
    if (
        not whole
        or not alike
        or _offset(load.index, source, node) != _offset(store.index, copy, node)
    ):
        return None
    return Alias(load.buffer, dims, load.index)


def _offset(index: IndexMap, buffer: Buffer, comp: Comp) -> Affine:
    """Elements from the start of the buffer. An axis of extent one makes no difference."""
    steps = (e * stride for e, stride in zip(index, buffer.strides))
    units = {a.name: affine.constant(0) for a in comp.axes if a.extent == 1}
    return sum(steps, affine.constant(0)).substitute(units)


def _readable(copy: str, alias: Alias, later: tuple[Node, ...]) -> bool:
    """Every Comp that loads the copy can load the source: an indirect index must meet a plain
    axis."""
    mapped = {n for entry in alias.index for n, _ in entry.terms if entry.as_axis is None}
    loads = [i for n in later if isinstance(n, Comp) for i in n.body if isinstance(i, Load)]
    read = [i for i in loads if i.buffer == copy]
    copied = any(s.init == copy for n in later if isinstance(n, Comp) for s in n.stores)
    return not copied and not any(
        isinstance(entry, Ref) and dim in mapped
        for i in read
        for dim, entry in zip(alias.dims, i.index)
    )


def _read_sources(node: Node, aliases: Mapping[str, Alias]) -> Node:
    """`node` reading the originals of the copies that it reads."""
    if not aliases.keys() & set(node.reads):
        return node
    if isinstance(node, Extern):
        return rename(node, {copy: alias.source for copy, alias in aliases.items()})
    return replace(node, body=tuple(_read_source(i, aliases) for i in node.body))


def _read_source(instr, aliases: Mapping[str, Alias]):
    if not isinstance(instr, Load) or instr.buffer not in aliases:
        return instr
    alias = aliases[instr.buffer]
    entries = dict(zip(alias.dims, instr.index))
    images = {d: e for d, e in entries.items() if isinstance(e, Affine)}
    index = tuple(
        entries[e.as_axis] if isinstance(entries.get(e.as_axis), Ref) else e.substitute(images)
        for e in alias.index
    )
    return replace(instr, buffer=alias.source, index=index)
