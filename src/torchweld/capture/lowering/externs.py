"""Calls that stay with ATen: their arguments as the IR writes them, their results as buffers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import permutations

import torch

from torchweld.capture.lowering.build import GraphBuilder
from torchweld.capture.lowering.call import Call, dtype_of
from torchweld.capture.lowering.nest import stored, usable_strides
from torchweld.capture.torch_private import OpOverload
from torchweld.core.errors import NotLowered
from torchweld.ir import views
from torchweld.ir.nodes import Arg, Attr, Extern, View
from torchweld.ir.size import Poly, Size
from torchweld.ir.views import Tensor

# Products give a contiguous result whatever the strides of their operands: a transposed or sliced
# operand needs no copy.
_ANY_STRIDES = frozenset(
    f"aten.{name}.default"
    for name in ("mm", "addmm", "bmm", "baddbmm", "linear", "addmv", "mv", "matmul")
) | {"torchweld.wide_product.default"}
# Attention reads keys and values (arguments 1 and 2) by their strides, the last of which must be
# one. Its result is laid out
# as a dense query is.
_STRIDED_KEYS = ("aten._scaled_dot_product_", "aten.scaled_dot_product_attention")
# Complex numbers as pairs: a view wherever it is a view in eager.
_PAIRS = "aten.view_as_real.default"
SAME, ANY, WRITTEN = "eager's strides", "any strides", "in place"
ROWS, DENSE = "unit last stride", "unit last stride, no gaps; the result follows"
# Which of their arguments is the weight, and which have a number for each side.
_CONVOLUTIONS = {
    "aten.convolution.default": (1, (3, 4, 5, 7)),
    "aten.convolution_backward.default": (2, (4, 5, 6, 8)),
}
_ATTRS = {torch.device: "device", torch.layout: "layout", torch.memory_format: "memory_format"}


def emit(call: Call, node: torch.fx.Node, env: dict[torch.fx.Node, object]) -> object:
    """Appends the Extern for an fx node; gives its result(s) as the lowering functions do."""
    target, schema = _target(call, node, env), node.target._schema
    writer = _Arguments(call.graph, env)
    layouts = _layouts(target)
    args = tuple(
        writer.convert(a, _layout_of(schema.arguments[k], layouts(k)))
        for k, a in enumerate(node.args)
    )
    args = _for_each_side(target, args)
    named = {a.name: a for a in schema.arguments}
    kwargs = tuple(
        (k, writer.convert(v, _layout_of(named[k], SAME))) for k, v in node.kwargs.items()
    )
    follows = _relaxed(call, node, args[0]) if layouts(0) == DENSE else None
    outputs = tuple(
        None if _written_argument(node, k) else _output(call, k, follows if k == 0 else None)
        for k in range(len(call.specs))
    )
    name = call.graph.node_name(call.name)
    call.graph.emit(
        Extern(name, target, args, kwargs, outputs, tuple(writer.written), (call.graph.origin,))
    )
    for buffer in writer.written:
        call.graph.forget_copies_of(buffer)
    results = tuple(
        env.get(_written_argument(node, k)) if o is None else views.whole(call.graph.buffers[o])
        for k, o in enumerate(outputs)
    )
    return results if isinstance(call.value, (tuple, list)) else results[0] if results else None


def _for_each_side(target: str, args: tuple[Arg, ...]) -> tuple[Arg, ...]:
    """A convolution takes one number for all sides of an image (`padding=(1,)`); what reads its
    arguments finds one for each."""
    if target not in _CONVOLUTIONS:
        return args
    weight, places = _CONVOLUTIONS[target]
    sides = len(args[weight].shape) - 2
    return tuple(
        arg * sides if k in places and len(arg) == 1 else arg for k, arg in enumerate(args)
    )


def _written_argument(node: torch.fx.Node, k: int) -> torch.fx.Node | None:
    """The argument that result k is (`x.add_(y)` gives x)."""
    returns, arguments = node.target._schema.returns, node.target._schema.arguments
    alias = returns[k].alias_info if k < len(returns) else None
    if alias is None or not alias.is_write:
        return None
    same = (
        n
        for n, a in zip(node.args, arguments)
        if a.alias_info and a.alias_info.is_write and a.alias_info.before_set == alias.before_set
    )
    return next(same, None)


def _target(call: Call, node: torch.fx.Node, env: dict[torch.fx.Node, object]) -> str:
    """The overload's name; for a view, the name of the same operation with memory of its own."""
    overload: OpOverload = node.target
    if not any(r.alias_info and not r.alias_info.is_write for r in overload._schema.returns):
        return str(overload)
    if str(overload) == _PAIRS and _is_of_call(call, env[node.args[0]]):
        return _PAIRS
    namespace, name, kind = str(overload).split(".")
    packet = getattr(getattr(torch.ops, namespace), f"{name}_copy", None)
    if packet is None or kind not in packet.overloads():
        raise NotLowered(f"{overload} gives a view that cannot be followed")
    return f"{namespace}.{name}_copy.{kind}"


def _is_of_call(call: Call, source: object) -> bool:
    """Whether a tensor is the result of another library call: memory that nothing else writes, and
    that lives as long as a view of it."""
    if not isinstance(source, Tensor) or source.source not in call.graph.buffers:
        return False
    makers = call.graph.writers(source.source)
    return any(isinstance(n, Extern) and source.source not in n.mutates for n in makers)


def _output(call: Call, k: int, strides) -> str | None:
    spec = call.specs[k]
    if spec is None or k not in call.used:
        return None
    name = call.name if len(call.specs) == 1 else f"{call.name}_{k}"
    strides = usable_strides(spec) if strides is None else strides
    return call.graph.buffer(name, spec.shape, spec.dtype, strides, spec.device).name


def _layouts(target: str) -> Callable[[int], str]:
    """What strides each positional argument may have."""
    if target in _ANY_STRIDES:
        return lambda k: ANY
    if target.startswith(_STRIDED_KEYS) and "backward" not in target:
        return lambda k: (DENSE, ROWS, ROWS)[k] if k < 3 else SAME
    return lambda k: SAME


def _relaxed(call: Call, node: torch.fx.Node, query: View):
    """The query's strides where they are not those that eager's result followed."""
    eager = call.graph.sizes.many(node.args[0].meta["val"].stride())
    return None if views.same_layout(query.shape, query.strides, eager) else query.strides


def _layout_of(argument, layout: str) -> str:
    written = argument.alias_info is not None and argument.alias_info.is_write
    return WRITTEN if written else layout


class _Arguments:
    def __init__(self, graph: GraphBuilder, env) -> None:
        self.graph, self.env = graph, env
        self.written: list[str] = []

    def convert(self, arg, layout: str) -> Arg:
        if isinstance(arg, torch.fx.Node):
            value = self.env[arg]
            is_tensor = isinstance(value, Tensor)
            return self._tensor(value, arg.meta["val"], layout) if is_tensor else value
        if isinstance(arg, (tuple, list)):
            return tuple(self.convert(a, layout) for a in arg)
        return constant(self.graph, arg)

    def _tensor(self, tensor: Tensor, fake: torch.Tensor, layout: str) -> View:
        if layout == WRITTEN:
            return self._target(tensor)
        if layout == ANY:
            return window(self.graph, tensor)
        view = self.graph.view_of(tensor) if layout in (ROWS, DENSE) else None
        if view is not None and view.strides[-1] == 1 and (layout == ROWS or views.is_dense(view)):
            return view
        strides = self.graph.sizes.many(fake.stride())
        return window(self.graph, tensor, None if _overlaps(tensor, strides) else strides)

    def _target(self, tensor: Tensor) -> View:
        view = self.graph.view_of(tensor)
        if view is None or tensor.copied:
            raise NotLowered("a mutation of what has no memory of its own")
        self.written.append(view.buffer)
        return view


def window(graph: GraphBuilder, tensor: Tensor, strides=None) -> View:
    """The tensor as a View, with these strides where they are given; copied if it is no such
    window."""
    view = graph.view_of(tensor)
    if view is not None and (
        strides is None or views.same_layout(view.shape, view.strides, strides)
    ):
        return view if strides is None else replace(view, strides=tuple(strides))
    if strides is not None:
        if _overlaps(tensor, strides):
            raise NotLowered("a stride of zero along what does not repeat")
        made = graph.view_of(stored(graph, _once(tensor, strides), strides))
        return replace(made, shape=tensor.shape, strides=tuple(strides)) if 0 in strides else made
    return graph.view_of(_transposed_copy(graph, tensor) or stored(graph, tensor))


def _overlaps(tensor: Tensor, strides: Sequence[Size]) -> bool:
    """Whether a dimension has stride zero whose elements may differ: torch knows that they do not
    (the gradient of a sum, reshaped to sizes that vary), or has it wrong."""
    shape = _once(tensor, strides).shape
    return any(stride == 0 and extent != 1 for extent, stride in zip(shape, strides))


def _once(tensor: Tensor, strides: Sequence[Size]) -> Tensor:
    """The first of what repeats along dimensions of stride zero. A copy with all of them would be
    contiguous: attention refuses a mask without the gaps that keep its rows aligned."""
    repeated = [
        stride == 0 and not any(atom.steps for atom in dim)
        for dim, stride in zip(tensor.dims, strides)
    ]
    return replace(tensor, dims=tuple(() if r else d for r, d in zip(repeated, tensor.dims)))


def _transposed_copy(graph: GraphBuilder, tensor: Tensor) -> Tensor | None:
    """A copy made before of the same elements, its dimensions in another order: the two products of
    a gradient read one matrix both ways."""
    for order in permutations(range(tensor.rank)):
        twin = replace(tensor, dims=tuple(tensor.dims[d] for d in order))
        made = graph.copies.get((twin, None))
        if made is not None:
            return replace(made, dims=tuple(made.dims[order.index(d)] for d in range(tensor.rank)))
    return None


def constant(graph: GraphBuilder, arg) -> Arg:
    """A number, string, None or attribute as the IR writes it."""
    if arg is None or isinstance(arg, (bool, int, float, str, Poly)):
        return arg
    if isinstance(arg, torch.SymInt):
        return graph.sizes.convert(arg)
    if isinstance(arg, torch.dtype):
        return Attr("dtype", dtype_of(arg).name)
    for kind, name in _ATTRS.items():
        if isinstance(arg, kind):
            return Attr(name, str(arg).removeprefix("torch."))
    raise NotLowered(f"no way to write an argument of type {type(arg).__name__}")
