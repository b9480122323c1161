"""Outputs of a captured graph that are views of its inputs.

AOTAutograd makes such an output again from the input's memory, with the shape, strides and offset
of what the graph returned. So these have to be the view's own, also where the IR could only follow
it as a copy.
"""

from __future__ import annotations

import torch

from torchweld.capture.lowering.sizes import Sizes
from torchweld.capture.torch_private import OpOverload, is_mutable, is_view
from torchweld.core.errors import NotLowered
from torchweld.ir.nodes import View


def window_of_input(node: torch.fx.Node, sizes: Sizes) -> View | None:
    """`node`, an output, as a window of the placeholder that it is a view of, as torch traced it;
    None if it is a view of none. What is written back to an input may have other strides than it:
    the views are then the input's own. (With known sizes AOTAutograd repeats them itself.) Raises
    NotLowered where the input has no such views."""
    source = _viewed(node)
    if source is node or not isinstance(source.meta.get("val"), torch.Tensor):
        return None
    given = source if source.op == "placeholder" else _written_to(source)
    own, base = node.meta["val"], source.meta["val"]
    if given is None or own.dtype != base.dtype:
        return None
    if sizes.many(given.meta["val"].stride()) != sizes.many(base.stride()):
        if not sizes.symbols:
            return None
        base = given.meta["val"]
        try:
            own = _seen(node, source, base)
        except RuntimeError as error:
            raise NotLowered(f"{node.name} is no view of {given.name}: {error}") from error
    offset = sizes.convert(own.storage_offset()) - sizes.convert(base.storage_offset())
    return View(given.name, sizes.many(own.shape), sizes.many(own.stride()), offset)


def _viewed(node: torch.fx.Node) -> torch.fx.Node:
    """What `node` is a view of a view of."""
    while _is_view(node) or (node.op == "call_function" and _is_part(node)):
        node = node.args[0]
    return node


def _seen(node: torch.fx.Node, source: torch.fx.Node, instead: torch.Tensor) -> torch.Tensor:
    """`node`'s views of `source`, of another tensor of its shape. Errors: RuntimeError if that has
    none."""
    if node is source:
        return instead
    if "as_strided" in str(node.target):
        raise RuntimeError("as_strided tells strides of its own")
    whole = _seen(node.args[0], source, instead)
    others, named = torch.fx.node.map_arg((node.args[1:], node.kwargs), lambda n: n.meta["val"])
    return node.target(whole, *others, **named)


def _is_part(node: torch.fx.Node) -> bool:
    """Of several views that one operation gives."""
    whole = node.args[0] if node.args else None
    return not isinstance(node.target, OpOverload) and isinstance(whole, torch.fx.Node) and (
        _is_view(whole)
    )


def _is_view(node: torch.fx.Node) -> bool:
    return is_view(node) and not is_mutable(node)


def _written_to(node: torch.fx.Node) -> torch.fx.Node | None:
    """The placeholder that `node` is copied to in the end."""
    copies = (u for u in node.users if str(u.target) == "aten.copy_.default" and u.args[1] is node)
    return next((c.args[0] for c in copies if c.args[0].op == "placeholder"), None)
