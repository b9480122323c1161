"""Convolutions in 16-bit types that the CPU has no instructions for, in float32.

    before: y = convolution(x, w), all of them f16
    after:  comp x32 = x;  comp w32 = w;  y32 = convolution(x32, w32);  comp y = y32

ATen's loops for them reach 7 GFLOP/s on Zen 5 where float32 reaches 200. The planner joins the
conversions with what makes x and reads y, so that images between convolutions stay float32.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from torchweld.core import dtypes
from torchweld.ir.affine import axis, constant
from torchweld.ir.build import BodyBuilder
from torchweld.ir.nodes import Axis, Buffer, Comp, Extern, Graph, IndexMap, Node, Store, View
from torchweld.ir.substitute import drop_unit_axes
from torchweld.ir.views import Tensor, contiguous_strides, whole
from torchweld.plan.cpu_products import narrow_types
from torchweld.templates.gemm.comp import window

_CALL = "aten.convolution.default"


def widened_convolutions(graph: Graph) -> Graph:
    """`graph` with such convolutions in float32, on a CPU."""
    if not narrow_types():
        return graph
    nodes: list[Node] = []
    buffers = dict(graph.buffers)
    for node in graph.nodes:
        nodes += _widened(node, buffers) if _is_narrow(node, graph) else [node]
    return replace(graph, nodes=tuple(nodes), buffers=buffers)


def _is_narrow(node: Node, graph: Graph) -> bool:
    """Whether it is such a convolution of windows that maps describe."""
    if not isinstance(node, Extern) or node.target != _CALL or node.outputs[0] is None:
        return False
    kinds = {graph.buffers[n].dtype for n in (*node.reads, *node.writes)}
    images = [v for v in node.args if isinstance(v, View)]
    known = all(window(v, graph.buffers[v.buffer]) for v in images)
    return known and len(kinds) == 1 and kinds <= narrow_types()


def _widened(node: Extern, buffers: dict[str, Buffer]) -> list[Node]:
    """The nodes in the place of `node`; adds their buffers."""
    made: list[Node] = []
    args = list(node.args)
    for position, view in enumerate(node.args):
        if isinstance(view, View):
            source, name = buffers[view.buffer], f"{node.name}_wide_{position}"
            target = _dense(name, view.shape, source)
            buffers[name] = target
            made.append(_copy(window(view, source), target, BodyBuilder.widen, node))
            args[position] = View(name, target.shape, target.strides)
    result = buffers[node.outputs[0]]
    wide = _dense(f"{node.name}_wide", result.shape, result)
    buffers[wide.name] = wide
    made.append(replace(node, args=tuple(args), outputs=(wide.name, *node.outputs[1:])))
    made.append(_copy(whole(wide), result, lambda b, v: b.cast(v, result.dtype), node))
    return made


def _dense(name: str, shape, like: Buffer) -> Buffer:
    strides = contiguous_strides(shape)
    return Buffer(name, tuple(shape), dtypes.f32, strides, like.device)


def _copy(source: Tensor, target: Buffer, convert: Callable, node: Extern) -> Comp:
    """target = convert(source)"""
    axes: list[Axis] = []
    read, written = [constant(b) for b in source.base], [constant(0) for _ in target.shape]
    for d, dim in enumerate(source.dims):
        for number, atom in enumerate(dim):
            along = Axis(f"i{d}_{number}", atom.extent)
            axes.append(along)
            written[d] = written[d] * atom.extent + axis(along.name)
            for step, coefficient in atom.steps:
                read[step] = read[step] + axis(along.name) * coefficient
    body = BodyBuilder()
    index: IndexMap = tuple(read)
    value = convert(body, body.load(source.source, index, source.dtype))
    store = Store(target.name, tuple(written), value)
    comp = Comp(f"{target.name}_copy", tuple(axes), body.body, (store,), node.origins)
    return drop_unit_axes(comp)
