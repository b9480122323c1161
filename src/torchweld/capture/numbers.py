"""Numbers on the CPU that are known at the capture: constants of the graph, as the list in
`x[..., [-2]]`, and what is made of them alone, as `torch.tensor(64.0).sqrt()`. A GPU's kernel could
not read them there, and would be left to ATen."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from torchweld.capture.lowering.call import dtype_of
from torchweld.capture.torch_private import OpOverload
from torchweld.core.dtypes import DType
from torchweld.core.torch_private import pytree, without_modes
from torchweld.ir.views import Atom, Fill, Iota, Tensor, filled

_MOVES = frozenset({"aten._to_copy.default", "aten.clone.default", "aten.lift_fresh_copy.default"})
_MOST = 1 << 16  # elements that are looked at


def known_constant(value: torch.Tensor) -> Tensor | None:
    """A constant of the CPU that takes no memory: one number, or integers at equal distances."""
    dtype = dtype_of(value.dtype)
    if value.device.type != "cpu" or value.requires_grad or dtype.kind == "opaque":
        return None
    if value.dim() > 1 or not 1 <= value.numel() <= _MOST:
        return None
    with without_modes():
        numbers = value.flatten().tolist()
    if len(numbers) == 1:
        return filled(numbers[0], dtype, "cpu", tuple(value.shape))
    return _range(numbers, dtype) if dtype.is_integral else None


def _range(numbers: list[int], dtype: DType) -> Tensor | None:
    first, step = numbers[0], numbers[1] - numbers[0]
    if any(n != first + k * step for k, n in enumerate(numbers)):
        return None
    dims = ((Atom(len(numbers), ((0, step),) if step else ()),),)
    return Tensor(Iota(), dtype, "cpu", dims, (first,))


def known_number(node: torch.fx.Node, env: Mapping[torch.fx.Node, object]) -> Tensor | None:
    """What the call `node` gives, if that is such a number. `env`: what its arguments are."""
    value, inputs = node.meta.get("val"), node.all_input_nodes
    if not isinstance(value, torch.Tensor) or value.dim() or not _is_pure(node.target):
        return None
    dtype = dtype_of(value.dtype)
    if dtype.kind == "opaque" or not inputs or not all(_is_number(env[n]) for n in inputs):
        return None
    with without_modes():
        args, kwargs = pytree.tree_map_only(
            torch.fx.Node, lambda n: _tensor(env[n], n), (node.args, dict(node.kwargs))
        )
        number = node.target(*args, **kwargs | ({"device": "cpu"} if "device" in kwargs else {}))
        known = number.item()
    return Tensor(Fill(known), dtype, str(value.device), ())


def _is_pure(target: OpOverload) -> bool:
    """One element in, one out, the same each time."""
    if str(target) in _MOVES:
        return True
    tags = target.tags
    random = torch.Tag.nondeterministic_seeded in tags
    return torch.Tag.pointwise in tags and not random and not target._schema.is_mutable


def _is_number(value: object) -> bool:
    return (
        isinstance(value, Tensor)
        and isinstance(value.source, Fill)
        and not value.dims
        and value.device == "cpu"
    )


def _tensor(value: Tensor, node: torch.fx.Node) -> torch.Tensor:
    return torch.tensor(value.source.value, dtype=node.meta["val"].dtype)
