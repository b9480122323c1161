"""Numbers on the CPU, tensors without dimensions, that are made of known ones alone: of a constant
in the graph, as `torch.tensor(64.0).sqrt()`. What they are is known at the capture; a GPU's kernel
could not read them there, and would be left to ATen."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from torchweld.capture.lowering.call import dtype_of
from torchweld.capture.torch_private import OpOverload
from torchweld.core.torch_private import pytree, without_modes
from torchweld.ir.views import Fill, Tensor

_MOVES = frozenset({"aten._to_copy.default", "aten.clone.default", "aten.lift_fresh_copy.default"})


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
