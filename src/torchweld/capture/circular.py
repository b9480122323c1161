"""Circular padding as what it is, parts of an image beside each other.

    pad(x, (l, r), mode="circular")  ->  cat(x[n - l:], x, x[:r])

Torch fills an empty image: with its middle, then each side with a copy from within the image. These
are writes to one buffer, one after the other, forward and backward. A concatenation is one kernel,
with what is around it.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from torchweld.capture import torch_private
from torchweld.capture.constant import example

_CALLS = frozenset(
    {F.pad, torch_private.native_pad, torch.ops.aten.pad, torch.ops.aten.pad.default}
)


def write_out_circular(gm: torch.fx.GraphModule) -> int:
    """Changes the calls of Dynamo's or an exported graph, in place; returns how many."""
    changed = [node for node in gm.graph.nodes if _is_circular(node)]
    for node in changed:
        node.args, node.kwargs = (node.args[0], node.args[1]), {}
        node.target = circular
    if changed:
        gm.recompile()
    return len(changed)


def circular(x: torch.Tensor, sides) -> torch.Tensor:
    """x [..., d2, d1] with `sides` (left and right of d1, of d2, ...) from its other end. A side
    below zero leaves elements out."""
    padded = x
    for place in range(0, len(sides), 2):
        padded = _along(padded, x.dim() - 1 - place // 2, *sides[place : place + 2])
    return x.clone(memory_format=torch.contiguous_format) if padded is x else padded.contiguous()


def _along(x: torch.Tensor, dim: int, left: int, right: int) -> torch.Tensor:
    kept = x.shape[dim] + min(left, 0) + min(right, 0)
    if left < 0 or right < 0:
        x = x.narrow(dim, max(-left, 0), kept)
    before = [x.narrow(dim, kept - left, left)] if left > 0 else []
    after = [x.narrow(dim, 0, right)] if right > 0 else []
    return torch.cat([*before, x, *after], dim) if before or after else x


def _is_circular(node: torch.fx.Node) -> bool:
    """Torch computes it, or raises: sides that are not numbers, or longer than the image, stay."""
    if node.op != "call_function" or node.target not in _CALLS or len(node.args) < 2:
        return False
    mode = node.kwargs.get("mode", node.args[2] if len(node.args) > 2 else "constant")
    x, sides = example(node.args[0]), node.args[1]
    if mode != "circular" or x is None or not isinstance(sides, (list, tuple)):
        return False
    pairs = len(sides) // 2
    if not all(isinstance(n, int) for n in sides) or x.dim() not in (pairs + 1, pairs + 2):
        return False
    extents = [x.shape[x.dim() - 1 - pair] for pair in range(pairs)]
    return all(
        isinstance(n, int) and _fits(n, *sides[2 * pair : 2 * pair + 2])
        for pair, n in enumerate(extents)
    )


def _fits(extent: int, left: int, right: int) -> bool:
    return max(left, right, 1) <= extent + min(left, 0) + min(right, 0)
