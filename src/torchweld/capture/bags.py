"""Bags of embeddings that are all of one length, as a gather and a reduction.

    embedding_bag(index [bags, length], weight, mode="sum")  ->  embedding(index, weight).sum(1)

ATen's call is given the places where bags begin, which it looks at one by one, and returns four
tensors of which one is used. A gather and a reduction are one kernel, with what is around them.
In training on a GPU alone: there the gradient is a sum by sorted indices, as ATen's, in which all
rows of a bag read one element. On a CPU ATen's gradient is one pass, that of a gather a scatter.
"""

from __future__ import annotations

import inspect
from functools import cache

import torch
import torch.nn.functional as F
from torch.fx import Node

from torchweld.capture.constant import example
from torchweld.core.torch_private import without_modes

aten = torch.ops.aten
_SIGNATURE = inspect.signature(F.embedding_bag)
_WIDE = (torch.float32, torch.float64)


def write_out_bags(gm: torch.fx.GraphModule) -> int:
    """Changes the calls of Dynamo's graph `gm` that can be, in place; returns how many."""
    calls = gm.graph.find_nodes(op="call_function", target=F.embedding_bag)
    changed = [node for node in calls if _has_equal_bags(node)]
    for node in changed:
        given = _given(node)
        node.args = (given["input"], given["weight"], given["mode"], given["per_sample_weights"])
        node.target, node.kwargs = equal_bags, {}
    if changed:
        gm.recompile()
    return len(changed)


def equal_bags(
    index: torch.Tensor, weight: torch.Tensor, mode: str, factors: torch.Tensor | None
) -> torch.Tensor:
    """The sum, mean or largest of the rows `index` [bags, length] of `weight` [rows, columns], each
    times its factor, if there are any: [bags, columns]."""
    rows = F.embedding(index, weight)
    if mode == "max":
        return rows.amax(1)
    if factors is not None:
        rows = rows * factors.unsqueeze(-1)
    return rows.mean(1) if mode == "mean" else rows.sum(1)


def _given(node: Node) -> dict:
    bound = _SIGNATURE.bind(*node.args, **node.kwargs)
    bound.apply_defaults()
    return bound.arguments


def _has_equal_bags(node: Node) -> bool:
    given = _given(node)
    index, weight = example(given["input"]), example(given["weight"])
    unusual = (given[n] for n in ("offsets", "max_norm", "padding_idx", "include_last_offset"))
    if index is None or weight is None or any(not (x is None or x is False) for x in unusual):
        return False
    if torch.is_grad_enabled() and weight.requires_grad and not _has_equal_gradient(given):
        return False
    if given["per_sample_weights"] is not None and weight.dtype not in _WIDE:
        return False  # ATen rounds each product in 16 bits once, with the sum
    plain = index.dim() == weight.dim() == 2 and not index.is_floating_point()
    return plain and isinstance(index.shape[1], int) and index.shape[1] > 0


def _has_equal_gradient(given: dict) -> bool:
    """Whether the gradient of the gather is computed as that of the bags. The largest of equal rows
    share theirs; a mean of 16 bits would be rounded for each row, unless the division is exact."""
    index, weight, mode = example(given["input"]), example(given["weight"]), given["mode"]
    if weight.device.type != "cuda" or mode == "max" or index.dim() != 2:
        return False
    if given["sparse"] or given["scale_grad_by_freq"]:
        return False
    bags, length = index.shape
    if not (isinstance(bags, int) and isinstance(length, int)):
        return False
    return mode == "sum" or weight.dtype in _WIDE or length & (length - 1) == 0


def say_what_is_empty(gm: torch.fx.GraphModule) -> None:
    """Of bags that are sums, ATen's fast way for a CPU does not say which bag an index is in; the
    second result is empty. Torch's shape function does not know that of bfloat16 (torch 2.13)."""
    for node in gm.graph.find_nodes(op="call_function", target=aten._embedding_bag.default):
        values, weight = node.meta["val"], node.args[0].meta["val"]
        if weight.device.type != "cpu" or weight.dtype != torch.bfloat16 or not _is_empty():
            continue
        with weight.fake_mode:
            given = (a.meta["val"] if isinstance(a, Node) else a for a in node.args)
            fast = aten._embedding_bag.default(*map(_halved, given))[1]
        node.meta["val"] = (values[0], fast, *values[2:])
        for user in node.users:
            if user.args[1] == 1:
                user.meta["val"] = fast


def _halved(given: object) -> object:
    """Rows and factors as float16, of which the shape function knows."""
    is_float = isinstance(given, torch.Tensor) and given.is_floating_point()
    return given.half() if is_float else given


@cache
def _is_empty() -> bool:
    """Of the torch at hand."""
    with without_modes():
        rows, places = torch.ones(1, 1, dtype=torch.bfloat16), torch.zeros(1, dtype=torch.int64)
        return not aten._embedding_bag.default(rows, places, places)[1].numel()
