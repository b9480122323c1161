"""What several rules ask of a graph: which buffers are outputs, which change, what a library call
may do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache

import torch

from torchweld.ir.nodes import Arg, Comp, Extern, Graph, Node, View, views
from torchweld.ir.substitute import rename_buffers


def output_buffers(graph: Graph) -> set[str]:
    return {v.buffer for v in views(graph.outputs)}


def fixed_buffers(graph: Graph, loose: frozenset[int]) -> set[str]:
    """Inputs, and outputs whose layout others see: all but those at the positions `loose`, of which
    the ones with sizes of the call are seen, too."""
    outputs = [o for i, o in enumerate(graph.outputs) if i not in loose or _is_dynamic(o)]
    return {n for n in graph.inputs if n is not None} | {v.buffer for v in views(outputs)}


def _is_dynamic(output: Arg) -> bool:
    sizes = (*output.shape, *output.strides) if isinstance(output, View) else ()
    return not all(isinstance(s, int) for s in sizes)


def mutated_buffers(graph: Graph) -> frozenset[str]:
    """Buffers that change after they were made: by a call, or inputs that are written."""
    called = frozenset(b for n in graph.nodes if isinstance(n, Extern) for b in n.mutates)
    return called | written_inputs(graph)


def written_inputs(graph: Graph) -> frozenset[str]:
    return frozenset(b for n in graph.nodes for b in n.writes).intersection(graph.inputs)


def rename(node: Node, names: Mapping[str, str]) -> Node:
    """A node that reads and writes other buffers."""
    if not names:
        return node
    if isinstance(node, Comp):
        return rename_buffers(node, names)
    return replace(
        node,
        args=rename_args(node.args, names),
        kwargs=tuple((k, rename_arg(a, names)) for k, a in node.kwargs),
        outputs=tuple(names.get(o, o) if o else o for o in node.outputs),
        mutates=tuple(names.get(m, m) for m in node.mutates),
    )


def rename_args(args: tuple[Arg, ...], names: Mapping[str, str]) -> tuple[Arg, ...]:
    return tuple(rename_arg(a, names) for a in args)


def rename_arg(arg: Arg, names: Mapping[str, str]) -> Arg:
    if isinstance(arg, View):
        return replace(arg, buffer=names.get(arg.buffer, arg.buffer))
    return rename_args(arg, names) if isinstance(arg, tuple) else arg


def without_unused_buffers(graph: Graph) -> Graph:
    """Inputs keep their buffers, read or not."""
    used = output_buffers(graph) | {i for i in graph.inputs if i}
    for node in graph.nodes:
        used.update(node.reads, node.writes)
    return replace(graph, buffers={n: b for n, b in graph.buffers.items() if n in used})


def is_pure(extern: Extern) -> bool:
    """The same results whenever it is called with the same arguments, and nothing else changes."""
    return not extern.mutates and _is_pure_target(extern.target)


_OWN_PRODUCTS = ("torchweld.wide_product.default",)


@cache
def _is_pure_target(target: str) -> bool:
    """True of ATen's functional overloads that draw no random numbers, and of products of our own;
    anything unknown may have effects, and what returns nothing (a check that raises) has one."""
    if target in _OWN_PRODUCTS:
        return True
    namespace, _, rest = target.partition(".")
    name, _, overload = rest.partition(".")
    if namespace != "aten" or not overload:
        return False
    op = getattr(getattr(torch.ops.aten, name), overload)
    returns = bool(op._schema.returns) and not op._schema.is_mutable
    return returns and torch.Tag.nondeterministic_seeded not in op.tags
