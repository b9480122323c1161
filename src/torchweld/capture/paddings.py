"""Zeros around an image that a convolution reads, as its own padding, before autograd.

    conv2d(pad(x, (1, 1, 2, 2)), w)  ->  conv2d(x, w, padding=(2, 1))

So the backward keeps x, not a larger copy, and its gradients need no cutting. Padding that differs
at both ends of a side stays; passes/paddings.py takes in more of it, without gradients.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from torchweld.capture import torch_private
from torchweld.capture.constant import example, is_written_between

aten = torch.ops.aten
_PADS = frozenset({F.pad, torch_private.native_pad, aten.pad.default, aten.constant_pad_nd.default})
_SIDES = {
    F.conv1d: 1, F.conv2d: 2, F.conv3d: 3,
    aten.conv1d.default: 1, aten.conv2d.default: 2, aten.conv3d.default: 3,
}  # fmt: skip
_NAMES = "input", "weight", "bias", "stride", "padding", "dilation", "groups"
_PAD_NAMES = "input", "pad", "mode", "value"


def take_in(gm: torch.fx.GraphModule) -> int:
    """Changes the calls of Dynamo's or an exported graph, in place; returns how many."""
    changed = sum(_taken_in(node) for node in gm.graph.nodes if node.target in _SIDES)
    if changed:
        gm.recompile()
    return changed


def _taken_in(node: torch.fx.Node) -> bool:
    sides, given = _SIDES[node.target], _given(node, _NAMES)
    image, padding = given["input"], _each(given.get("padding", 0), sides)
    added = _added(image, sides)
    if padding is None or added is None or is_written_between(image, node):
        return False
    inner = _given(image, _PAD_NAMES)["input"]
    given |= {"input": inner, "padding": tuple(p + a for p, a in zip(padding, added))}
    node.args, node.kwargs = (), given
    if not image.users:
        image.graph.erase_node(image)
    return True


def _given(node: torch.fx.Node, names: tuple[str, ...]) -> dict:
    return dict(zip(names, node.args)) | dict(node.kwargs)


def _each(number: object, sides: int) -> list[int] | None:
    """One number for each side; None for what is not numbers ("same")."""
    if isinstance(number, int):
        return [number] * sides
    plain = isinstance(number, (list, tuple)) and all(isinstance(n, int) for n in number)
    return list(number) * (sides if len(number) == 1 else 1) if plain else None


def _added(image: object, sides: int) -> list[int] | None:
    """The zeros that `image` has on both ends of each side; None where it is anything else."""
    if not isinstance(image, torch.fx.Node) or image.target not in _PADS:
        return None
    given = _given(image, _PAD_NAMES)
    pads, value = given.get("pad"), given.get("value", 0)
    if image.target is aten.constant_pad_nd.default:
        given, value = given | {"mode": "constant"}, given.get("mode", given.get("value", 0))
    zeros = given.get("mode", "constant") == "constant" and value in (None, 0)
    plain = isinstance(pads, (list, tuple)) and all(isinstance(n, int) for n in pads)
    if not zeros or not plain or example(given["input"]) is None or len(pads) > 2 * sides:
        return None
    ends = list(zip(pads[::2], pads[1::2]))
    if any(a != b or a < 0 for a, b in ends):
        return None
    return [0] * (sides - len(ends)) + [a for a, _ in reversed(ends)]
