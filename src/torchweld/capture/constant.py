"""Values that a graph computes from nothing but itself: positions, triangles, masks built from
`arange`.

Works on Dynamo's graph and on ATen graphs: operations go by name. A value is constant if every
operation behind it is a known pure one on constants, and nothing in the graph writes to a tensor
that it was made from.
"""

from __future__ import annotations

import torch

from torchweld.capture import torch_private
from torchweld.core.torch_private import pytree, without_modes

_PURE_NAMES = """
    arange full ones zeros ones_like zeros_like full_like new_ones new_zeros new_full scalar_tensor
    add sub mul neg rsub diff cumsum floor_divide remainder abs minimum maximum clamp tensor
    ge gt le lt eq ne and_ or_ not_ invert logical_and logical_or logical_not bitwise_and
    bitwise_or bitwise_not xor where masked_fill tril triu getitem index slice select
    unsqueeze squeeze expand expand_as view reshape transpose permute t broadcast_to repeat
    contiguous clone detach alias to bool float long int type_as _to_copy all any
"""
PURE = frozenset(_PURE_NAMES.split())
_PURE_DESPITE_NAME = ("and_", "or_", "not_", "is_")
_AUGMENTED_NAMES = """
    setitem __setitem__ iadd isub imul imatmul itruediv ifloordiv imod ipow iand ior ixor ilshift
    irshift
"""
_AUGMENTED = frozenset(_AUGMENTED_NAMES.split())
# What Dynamo, in some versions of torch, and ATen call a tensor's operators.
_NAMES = ("eq", "ne", "lt", "le", "gt", "ge", "add", "sub", "mul", "neg", "invert", "xor")
_OPERATORS = {f"__{n}__": n for n in _NAMES} | {
    "__and__": "and_", "__or__": "or_", "__radd__": "add", "__rmul__": "mul", "__rsub__": "rsub",
}  # fmt: skip
LARGEST = 1 << 26  # elements; a larger value is not worth computing to learn what it is


class Constants:
    """Evaluates constants of one graph on demand. Build it after the last change to what a constant
    is made of."""

    def __init__(self, gm: torch.fx.GraphModule) -> None:
        self._written = written(gm.graph)
        self._values: dict[torch.fx.Node, object] = {}

    def value(self, node) -> torch.Tensor | None:
        """The tensor that `node` always is, or None."""
        if not isinstance(node, torch.fx.Node):
            return None
        with without_modes(), torch.no_grad():
            found = self._evaluate(node)
        return found if isinstance(found, torch.Tensor) else None

    def _evaluate(self, node: torch.fx.Node):
        """Sources first; `_UNKNOWN` for what is not constant."""
        for pending in inputs_first(node, self._values):
            self._values[pending] = self._apply(pending)
        return self._values[node]

    def _apply(self, node: torch.fx.Node):
        if node in self._written or name_of(node) not in PURE or not _small(node):
            return _UNKNOWN
        if any(self._values[n] is _UNKNOWN for n in node.all_input_nodes):
            return _UNKNOWN
        args, kwargs = pytree.tree_map_only(
            torch.fx.Node, self._values.__getitem__, (node.args, dict(node.kwargs))
        )
        try:
            if node.op == "call_method":
                return getattr(args[0], node.target)(*args[1:], **kwargs)
            return node.target(*args, **kwargs)
        except Exception:
            return _UNKNOWN


class _Unknown:
    pass


_UNKNOWN = _Unknown()


def name_of(node: torch.fx.Node) -> str:
    """The operation's name without namespace and overload: "expand" for torch.Tensor.expand and
    aten.expand.default, "eq" for ==."""
    name = _written_name(node)
    return _OPERATORS.get(name, name)


def _written_name(node: torch.fx.Node) -> str:
    if node.op == "call_method":
        return node.target
    if node.op != "call_function":
        return ""
    if isinstance(node.target, torch_private.OpOverload):
        return node.target.name().split("::")[-1].split(".")[0]
    return getattr(node.target, "__name__", "")


def example(node) -> torch.Tensor | None:
    """The FakeTensor that a node stands for, in either dialect."""
    value = traced_value(node) if isinstance(node, torch.fx.Node) else None
    return value if isinstance(value, torch.Tensor) else None


def traced_value(node: torch.fx.Node) -> object:
    """What a node gave while it was traced: a FakeTensor, a size, several of them; None where
    nothing is known. Dynamo and AOTAutograd keep it under two names."""
    return node.meta.get("example_value", node.meta.get("val"))


def inputs_first(node: torch.fx.Node, known) -> list[torch.fx.Node]:
    """What `node` depends on and is not in `known`, in dependency order, `node` last."""
    order, stack, seen = [], [(node, False)], set()
    while stack:
        current, inputs_done = stack.pop()
        if inputs_done:
            order.append(current)
        elif current not in seen and current not in known:
            seen.add(current)
            stack.append((current, True))
            stack.extend((n, False) for n in current.all_input_nodes)
    return order


def _small(node: torch.fx.Node) -> bool:
    value = example(node)
    if value is None:
        return True
    return all(isinstance(s, int) for s in value.shape) and value.numel() <= LARGEST


def written(graph: torch.fx.Graph) -> set[torch.fx.Node]:
    """Nodes that something writes to, with all that they were made from: a write goes through views
    to the base."""
    found: set[torch.fx.Node] = set()
    for node in graph.nodes:
        if writes(node):
            for target in node.all_input_nodes:
                found.update(inputs_first(target, found))
    return found


def writes(node: torch.fx.Node) -> bool:
    """The operation may change one of its arguments."""
    if isinstance(node.target, torch_private.OpOverload):
        return node.target._schema.is_mutable
    name = name_of(node)
    in_place = name.endswith("_") and not name.endswith("__") and name not in _PURE_DESPITE_NAME
    return in_place or name in _AUGMENTED or "out" in node.kwargs


def is_written_between(first: torch.fx.Node, last: torch.fx.Node) -> bool:
    """Whether an operation behind `first` and in front of `last` may change one of its
    arguments."""
    while (first := first.next) is not last:
        if writes(first):
            return True
    return False
