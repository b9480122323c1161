"""Attention calls said at their best, before they are taken apart.

Models build masks that a kernel has a flag for, and copy keys and values that it can share. Each
rule below replaces an argument of `scaled_dot_product_attention` by one that provably means the
same:

    attn_mask=<all true, or all zero>              ->  attn_mask=None
    attn_mask=<lower triangle of trues or zeros>   ->  attn_mask=None, is_causal=True
    key, value=<each head repeated g times>        ->  key, value=<as they were>, enable_gqa=True
    <any tensor with a last stride not one> (CUDA) ->  its contiguous copy

They work on Dynamo's graph (torch functions and methods) and on an exported one (ATen) alike.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from torchweld.capture import constant, positions
from torchweld.capture.constant import example

_TARGETS = (F.scaled_dot_product_attention, torch.ops.aten.scaled_dot_product_attention.default)
_NAMES = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")


@dataclass
class _Call:
    """An attention call's arguments by name; absent ones are absent."""

    node: torch.fx.Node
    args: dict

    def value(self, name: str):
        """The FakeTensor of an argument, None where there is none."""
        return example(self.args.get(name))

    def store(self) -> None:
        """Writes the arguments back into the graph."""
        self.node.args = tuple(self.args[n] for n in _NAMES[:3])
        self.node.kwargs = {n: v for n, v in self.args.items() if n not in _NAMES[:3]}


def simplify(gm: torch.fx.GraphModule) -> int:
    """Applies every rule to every attention call of `gm`, in place; returns how many calls
    changed."""
    calls = [n for n in gm.graph.nodes if n.op == "call_function" and n.target in _TARGETS]
    if not calls:
        return 0
    masks = _Masks(gm)
    changed = sum(_simplify_call(_Call(node, arguments(node)), masks) for node in calls)
    if changed:
        gm.recompile()
    return changed


def arguments(node: torch.fx.Node) -> dict:
    """The arguments of an attention call by name."""
    return dict(zip(_NAMES, node.args)) | dict(node.kwargs)


def _simplify_call(call: _Call, masks: _Masks) -> bool:
    applied = [
        drop_trivial_mask(call, masks) or flag_causal_mask(call, masks),
        share_repeated_heads(call),
        unit_last_strides(call),
    ]
    if any(applied):
        call.store()
    return any(applied)


def drop_trivial_mask(call: _Call, masks: _Masks) -> bool:
    """attn_mask = all true, or all zero  ->  attn_mask = None"""
    mask = call.value("attn_mask")
    if mask is None or _broadcasts_wider(call) or not masks.is_trivial(call.args["attn_mask"]):
        return False
    call.args["attn_mask"] = None
    return True


def flag_causal_mask(call: _Call, masks: _Masks) -> bool:
    """attn_mask[..., i, j] = (j <= i), or 0 there and -inf elsewhere  ->  attn_mask = None,
    is_causal = True

    Square only: kernels disagree about which corner a rectangular triangle starts from.
    """
    mask = call.value("attn_mask")
    if mask is None or mask.dim() < 2 or _broadcasts_wider(call) or call.args.get("is_causal"):
        return False
    sizes = (call.value("query").shape[-2], call.value("key").shape[-2], *mask.shape[-2:])
    if any(str(size) != str(sizes[0]) for size in sizes):
        return False
    if not masks.is_causal(call.args["attn_mask"]):
        return False
    call.args["attn_mask"], call.args["is_causal"] = None, True
    return True


class _Masks:
    """What a mask is, by its value where all sizes are known, by its definition where they are
    not."""

    def __init__(self, gm: torch.fx.GraphModule) -> None:
        self._constants = constant.Constants(gm)
        self._positions = positions.Positions(gm.graph)

    def is_trivial(self, node: torch.fx.Node) -> bool:
        mask = self._constants.value(node)
        if mask is not None:
            return bool(_is_allowed(mask).all())
        truth = self._positions.mask(node)
        return truth is not None and positions.always(truth)

    def is_causal(self, node: torch.fx.Node) -> bool:
        mask = self._constants.value(node)
        if mask is not None:
            return _is_triangle(mask)
        truth = self._positions.mask(node)
        return truth is not None and positions.is_causal(truth)


def _is_triangle(mask: torch.Tensor) -> bool:
    """True or 0 on and below the diagonal of the last two dimensions, false or -inf above it."""
    below = torch.ones(mask.shape[-2:], dtype=torch.bool, device=mask.device).tril()
    allowed = (_is_allowed(mask) == below).all()
    return bool(allowed) and bool(_is_forbidden(mask)[(~below).expand_as(mask)].all())


def share_repeated_heads(call: _Call) -> bool:
    """key = repeat each head of k g times, value = the same of v  ->  key = k, value = v,
    enable_gqa = True

    Only where a fused kernel takes shared heads: never with a mask, on CUDA in 16-bit types (the
    flash kernel).
    """
    key, value = repeated_heads(call.args["key"]), repeated_heads(call.args["value"])
    if (
        key is None
        or value is None
        or call.args.get("attn_mask") is not None
        or call.args.get("enable_gqa")
    ):
        return False
    query, shared = call.value("query"), example(key)
    if shared.shape[1] != example(value).shape[1] or query.dim() != 4:
        return False
    if query.device.type == "cuda" and query.dtype not in (torch.float16, torch.bfloat16):
        return False
    call.args |= {"key": key, "value": value, "enable_gqa": True}
    return True


def unit_last_strides(call: _Call) -> bool:
    """An argument with a last stride other than one  ->  its contiguous copy

    The fused CUDA kernels refuse other strides, and torch then falls back to plain products and
    softmax. (That rows of a mask start at multiples of 16 bytes, torch sees to itself.)
    """
    strided = [name for name in _NAMES[:4] if _is_strided(call.value(name))]
    for name in strided:
        call.args[name] = _contiguous(call.node, call.args[name])
    return bool(strided)


def _is_strided(tensor: torch.Tensor | None) -> bool:
    if tensor is None or tensor.device.type != "cuda":
        return False
    return tensor.dim() > 0 and tensor.stride(-1) != 1


def _contiguous(call: torch.fx.Node, node: torch.fx.Node) -> torch.fx.Node:
    with call.graph.inserting_before(call):
        if call.target is F.scaled_dot_product_attention:
            copy = call.graph.call_method("contiguous", (node,))
        else:
            copy = call.graph.call_function(torch.ops.aten.contiguous.default, (node,))
    fake = example(node)
    with fake.fake_mode:
        unit = torch.empty(fake.shape, dtype=fake.dtype, device=fake.device)
    copy.meta = {k: unit if k in ("example_value", "val") else v for k, v in node.meta.items()}
    return copy


def repeated_heads(node) -> torch.fx.Node | None:
    """x, of shape [b, h, s, d], where `node` is x with each head repeated: reshape(expand(x[:, :,
    None], g times)), or repeat_interleave(x, g, dim=1). None for anything else."""
    if not isinstance(node, torch.fx.Node):
        return None
    if constant.name_of(node) == "repeat_interleave":
        return _repeat_interleave_source(node)
    if constant.name_of(node) not in (
        "reshape",
        "view",
        "flatten",
        "_unsafe_view",
        "clone",
        "contiguous",
    ):
        return None
    if constant.name_of(node) in ("clone", "contiguous"):
        return repeated_heads(node.args[0])
    return _expanded_source(node, _skip_copies(node.args[0]))


def _expanded_source(result: torch.fx.Node, expanded: torch.fx.Node) -> torch.fx.Node | None:
    if constant.name_of(expanded) != "expand":
        return None
    single = expanded.args[0]
    wide, narrow, flat = example(expanded), example(single), example(result)
    if wide is None or narrow is None or wide.dim() != 5 or narrow.dim() != 5 or flat.dim() != 4:
        return None
    b, h, g, s, d = wide.shape
    if tuple(narrow.shape) != (b, h, 1, s, d) or tuple(flat.shape) != (b, h * g, s, d):
        return None
    return _before_new_axis(single)


def _before_new_axis(single: torch.fx.Node) -> torch.fx.Node | None:
    """x of x[:, :, None, :, :] or x.unsqueeze(2)."""
    source, name = single.args[0], constant.name_of(single)
    if name == "getitem":
        index = single.args[1]
        index = index if isinstance(index, tuple) else (index,)
        new_axis = [i for i in index if i is None]
        added_third = len(new_axis) == 1 and len(index) > 2 and index[2] is None
        if not added_third or not all(i is None or i == slice(None) for i in index):
            return None
    elif name != "unsqueeze" or single.args[1] not in (2, -3):
        return None
    source = _skip_whole_slices(source)
    return source if example(source).dim() == 4 else None


def _repeat_interleave_source(node: torch.fx.Node) -> torch.fx.Node | None:
    given = dict(zip(("input", "repeats", "dim"), node.args)) | dict(node.kwargs)
    source = given.get("input", given.get("self"))
    if not isinstance(given.get("repeats"), int) or given.get("dim") not in (1, -3):
        return None
    return source if example(source).dim() == 4 else None


def _skip_copies(node: torch.fx.Node) -> torch.fx.Node:
    while constant.name_of(node) in ("clone", "contiguous"):
        node = node.args[0]
    return node


def _skip_whole_slices(node: torch.fx.Node) -> torch.fx.Node:
    """Past `aten.slice` nodes that keep everything."""
    while constant.name_of(node) == "slice" and example(node).shape == example(node.args[0]).shape:
        node = node.args[0]
    return node


def _is_allowed(mask: torch.Tensor) -> torch.Tensor:
    return mask if mask.dtype == torch.bool else mask == 0


def _is_forbidden(mask: torch.Tensor) -> torch.Tensor:
    return ~mask if mask.dtype == torch.bool else mask == -torch.inf


def _broadcasts_wider(call: _Call) -> bool:
    """The mask has more leading dimensions, or larger ones, than the scores have without it."""
    query, mask = call.value("query"), call.value("attn_mask")
    scores = (*query.shape[:-1], call.value("key").shape[-2])
    if mask.dim() > len(scores):
        return True
    pairs = zip(reversed(mask.shape), reversed(scores))
    return any(str(m) not in ("1", str(s)) for m, s in pairs)
