"""What an operation needs of its operands where only a part of its result is read, along one
dimension. On Dynamo's graph; by name, so that functions, methods and operators are one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch.fx import Node
from torch.fx.node import map_aggregate, map_arg

from torchweld.capture import attention
from torchweld.capture.constant import example, name_of, traced_value


@dataclass(frozen=True, slots=True)
class Part:
    """start:stop, as Python counts."""

    start: int | None
    stop: int | None

    def of(self, dim: int) -> tuple[slice, ...]:
        """The index that takes it along `dim`."""
        return (slice(None),) * dim + (slice(self.start, self.stop),)

    def length(self, size: int | torch.SymInt) -> int | None:
        """Of the part of `size`; None where that is not a number."""
        return len(range(size)[slice(self.start, self.stop)]) if isinstance(size, int) else None


@dataclass(frozen=True, slots=True)
class Taken:
    """An operand of which the part along `dim` is enough."""

    node: Node
    dim: int


Call = tuple[tuple, dict]  # args and kwargs, with Taken in the place of operands
Rule = Callable[[Node, int, Part], "Call | None"]  # node, dim, the part along it


def part_call(node: Node, dim: int, part: Part) -> Call | None:
    """The call that makes `part` of the result along `dim`; None if that needs more than parts."""
    rule, value = _RULES.get(name_of(node)), result_of(node)
    if rule is None or value is None or node.kwargs.get("inplace") or "out" in node.kwargs:
        return None
    if is_one(value.shape[dim]):
        return None
    if part.length(value.shape[dim]) == 0:  # whose gradients eager has, and is none of anything
        return None
    return rule(node, dim, part)


def result_of(node: Node) -> torch.Tensor | None:
    """What a node gives, or the first of several."""
    return first_tensor(traced_value(node))


def first_tensor(value) -> torch.Tensor | None:
    """`value`, or the first of several."""
    first = value[0] if isinstance(value, (tuple, list)) and value else value
    return first if isinstance(first, torch.Tensor) else None


def taken_in(call: Call) -> list[Taken]:
    found: list[Taken] = []
    map_aggregate(call, lambda a: found.append(a) if isinstance(a, Taken) else None)
    return found


def is_one(size) -> bool:
    return isinstance(size, int) and size == 1


def _same(a: Iterable, b: Iterable) -> bool:
    """Whether sizes are the same for certain."""
    return [str(n) for n in a] == [str(n) for n in b]


def _given(node: Node, place: int, *names: str, default=None):
    named = (node.kwargs[n] for n in names if n in node.kwargs)
    return node.args[place] if len(node.args) > place else next(named, default)


def _first(node: Node, dim: int) -> Call | None:
    """Its first operand alone."""
    if not node.args or not isinstance(node.args[0], Node):
        return None
    return (Taken(node.args[0], dim), *node.args[1:]), dict(node.kwargs)


# -- element by element --


def _pointwise(node: Node, dim: int, part: Part) -> Call | None:
    rank = example(node).dim()

    def taken(operand: Node):
        value = example(operand)
        place = -1 if value is None else dim - rank + value.dim()
        return operand if place < 0 or is_one(value.shape[place]) else Taken(operand, place)

    if any(a is True for a in node.args[1:]):  # in place, as F.relu(x, True)
        return None
    return map_arg(node.args, taken), map_arg(dict(node.kwargs), taken)


def _dropout(node: Node, dim: int, part: Part) -> Call | None:
    """That which drops something draws a number for each element."""
    drops = _given(node, 2, "training", "train", default=True) is not False
    return None if drops else _first(node, dim)


# -- products --


def _linear(node: Node, dim: int, part: Part) -> Call | None:
    return _first(node, dim) if dim < example(node).dim() - 1 else None


def _matmul(node: Node, dim: int, part: Part) -> Call | None:
    left, right = (example(a) for a in node.args[:2]) if len(node.args) == 2 else (None, None)
    rank = example(node).dim()
    if node.kwargs or left is None or right is None or min(left.dim(), right.dim()) < 2:
        return None
    if dim == rank - 2:
        return _first(node, left.dim() - 2)
    return _pointwise(node, dim, part) if dim < rank - 2 else None


def _attention(node: Node, dim: int, part: Part) -> Call | None:
    """Some queries; of those whose keys are cut off behind them, the last one, which sees all."""
    given = attention.arguments(node)
    query, key, mask = (example(given.get(n)) for n in ("query", "key", "attn_mask"))
    if query is None or key is None or dim != query.dim() - 2 or given.get("dropout_p", 0.0) != 0.0:
        return None
    if given.get("is_causal"):
        if part != Part(-1, None) or not _same([query.shape[-2]], [key.shape[-2]]):
            return None
        given["is_causal"] = False
    if mask is not None and mask.dim() > 1 and not is_one(mask.shape[-2]):
        given["attn_mask"] = Taken(given["attn_mask"], mask.dim() - 2)
    given["query"] = Taken(given["query"], dim)
    return tuple(given.pop(n) for n in ("query", "key", "value")), given


# -- along a row --


def _norm(node: Node, dim: int, part: Part) -> Call | None:
    shape = _given(node, 1, "normalized_shape")
    inner = len(shape) if isinstance(shape, (tuple, list, torch.Size)) else 1
    return _first(node, dim) if dim < example(node).dim() - inner else None


def _softmax(node: Node, dim: int, part: Part) -> Call | None:
    along, rank = _given(node, 1, "dim"), example(node).dim()
    return _first(node, dim) if type(along) is int and along % rank != dim else None


def _reduction(node: Node, dim: int, part: Part) -> Call | None:
    dims, x = _given(node, 1, "dim", "axis"), example(node.args[0]) if node.args else None
    dims = [dims] if type(dims) is int else dims
    if x is None or not isinstance(dims, (tuple, list)) or not all(type(d) is int for d in dims):
        return None
    gone = {d % x.dim() for d in dims}
    kept = [d for d in range(x.dim()) if d not in gone]
    place = dim if _given(node, 2, "keepdim", default=False) else kept[dim]
    return None if place in gone else _first(node, place)


# -- views --


def _transposed(node: Node, dim: int, part: Part) -> Call | None:
    rank = example(node).dim()
    if len(node.args) != 3 or not all(type(a) is int for a in node.args[1:]):
        return None
    a, b = (n % rank for n in node.args[1:])
    return _first(node, {a: b, b: a}.get(dim, dim))


def _permuted(node: Node, dim: int, part: Part) -> Call | None:
    dims = _sizes(node)
    return _first(node, dims[dim] % len(dims)) if dims else None


def _sizes(node: Node) -> list | None:
    """The list that it is given, in one argument or several."""
    if node.kwargs or len(node.args) < 2:
        return None
    listed = node.args[1] if isinstance(node.args[1], (tuple, list)) else node.args[1:]
    return list(listed) if all(isinstance(n, (int, Node)) for n in listed) else None


def _reshaped(node: Node, dim: int, part: Part) -> Call | None:
    place, sizes, size = _kept(node, dim), _sizes(node), part.length(example(node).shape[dim])
    if place is None or sizes is None or size is None:
        return None
    sizes[dim] = size
    return (Taken(node.args[0], place), tuple(sizes)), {}


def _flattened(node: Node, dim: int, part: Part) -> Call | None:
    """Other dimensions are put together."""
    place = _kept(node, dim)
    return None if place is None else _first(node, place)


def _unflattened(node: Node, dim: int, part: Part) -> Call | None:
    """Another dimension is taken apart."""
    at, sizes = _given(node, 1, "dim"), _given(node, 2, "sizes")
    if type(at) is not int or not isinstance(sizes, (tuple, list)):
        return None
    rank = example(node).dim() - len(sizes) + 1
    behind = dim - (at % rank + len(sizes))
    if behind >= 0:
        return _first(node, at % rank + 1 + behind)
    return _first(node, dim) if dim < at % rank else None


def _kept(node: Node, dim: int) -> int | None:
    """The dimension of the first operand that is dimension `dim` of the result."""
    x, value = example(node.args[0]) if node.args else None, example(node)
    if x is None:
        return None
    before = value.shape[:dim]
    for place in range(x.dim()):
        if _same([x.shape[place]], [value.shape[dim]]) and _equal_products(x.shape[:place], before):
            return place
    return None


def _equal_products(a: Sequence, b: Sequence) -> bool:
    fixed = all(isinstance(n, int) for n in (*a, *b))
    return torch.Size(a).numel() == torch.Size(b).numel() if fixed else _same(a, b)


def _unsqueezed(node: Node, dim: int, part: Part) -> Call | None:
    at, rank = _given(node, 1, "dim"), example(node).dim()
    return _first(node, dim - (at % rank < dim)) if type(at) is int and at % rank != dim else None


def _indexed(node: Node, dim: int, part: Part) -> Call | None:
    """A part along other dimensions, or one of several results."""
    whole = traced_value(node.args[0])
    if isinstance(whole, (tuple, list)):
        return _first(node, dim)
    index = index_of(node)
    if index is None or not isinstance(whole, torch.Tensor):
        return None
    given = iter(range(whole.dim()))
    kept = [(None if i is None else next(given), i) for i in index]
    place, taken = [(d, i) for d, i in kept if not isinstance(i, int)][dim]
    return _first(node, place) if place is not None and taken == slice(None) else None


def index_of(node: Node) -> list | None:
    """One entry for each dimension of what is indexed, and None for each new one; None for indices
    that are tensors or have steps."""
    whole, index = example(node.args[0]), node.args[1]
    if whole is None:
        return None
    index = list(index) if isinstance(index, tuple) else [index]
    if not all(i is None or i is Ellipsis or type(i) is int or _is_plain(i) for i in index):
        return None
    named = sum(i is not None and i is not Ellipsis for i in index)
    missing = [slice(None)] * (whole.dim() - named)
    at = index.index(Ellipsis) if Ellipsis in index else len(index)
    return index[:at] + missing + index[at + 1 :]


def _is_plain(index) -> bool:
    if not isinstance(index, slice) or index.step not in (None, 1):
        return False
    return all(n is None or type(n) is int for n in (index.start, index.stop))


def _pieces(node: Node, dim: int, part: Part) -> Call | None:
    along, rank = _given(node, 2, "dim", default=0), result_of(node).dim()
    return _first(node, dim) if type(along) is int and along % rank != dim else None


def _unbound(node: Node, dim: int, part: Part) -> Call | None:
    along, rank = _given(node, 1, "dim", default=0), result_of(node).dim() + 1
    return _first(node, dim + (along % rank <= dim)) if type(along) is int else None


def _joined(node: Node, dim: int, part: Part) -> Call | None:
    along, rank = _given(node, 1, "dim", default=0), example(node).dim()
    if type(along) is not int or along % rank == dim or not node.args:
        return None
    parts = [Taken(x, dim) if isinstance(x, Node) else x for x in node.args[0]]
    return (parts, *node.args[1:]), dict(node.kwargs)


_POINTWISE_NAMES = """
    add sub mul truediv div pow neg abs exp log sqrt rsqrt square reciprocal sin cos tanh sigmoid
    erf relu relu6 gelu silu mish elu selu celu softplus softsign leaky_relu hardswish hardsigmoid
    hardtanh logsigmoid clamp minimum maximum where masked_fill lerp addcmul
"""
_POINTWISE = frozenset(_POINTWISE_NAMES.split())
_MAYBE_SAME = {"float", "half", "bfloat16", "double", "to", "type_as", "contiguous", "clone",
               "detach", "alias"}  # fmt: skip
PRODUCTS = {"linear", "matmul", "bmm", "scaled_dot_product_attention"}
_RULES: dict[str, Rule] = {
    **dict.fromkeys(_POINTWISE | _MAYBE_SAME, _pointwise),
    **dict.fromkeys(("sum", "mean", "amax", "amin", "logsumexp"), _reduction),
    **dict.fromkeys(("layer_norm", "rms_norm"), _norm),
    **dict.fromkeys(("softmax", "log_softmax"), _softmax),
    **dict.fromkeys(("transpose", "swapaxes", "swapdims"), _transposed),
    **dict.fromkeys(("view", "reshape"), _reshaped),
    **dict.fromkeys(("chunk", "split"), _pieces),
    **dict.fromkeys(("cat", "concat"), _joined),
    **dict.fromkeys(("matmul", "bmm"), _matmul),
    "linear": _linear, "scaled_dot_product_attention": _attention, "dropout": _dropout,
    "flatten": _flattened, "unflatten": _unflattened, "permute": _permuted,
    "unsqueeze": _unsqueezed, "unbind": _unbound, "getitem": _indexed,
}  # fmt: skip
# What gives memory of its own, whatever it reads.
FRESH = PRODUCTS | _POINTWISE | {
    "layer_norm", "rms_norm", "softmax", "log_softmax", "sum", "mean", "amax", "amin", "var",
    "logsumexp", "cat", "concat", "cross_entropy", "nll_loss", "mse_loss", "embedding", "argmax",
    "clone",
}  # fmt: skip
