"""Calls of attention written out as products and a softmax, of which plan/scores makes a kernel
again: with the computation inside that changes the scores, or a faster one.

    scaled_dot_product_attention(q, k, v, attn_mask=f(positions))     a mask that is computed
    flex_attention(q, k, v, score_mod, block_mask)                    a function of scores
    scaled_dot_product_attention(q, k, v)                             of float32 on a GPU

A library's kernel would read such a mask from memory, rows x keys of it. In float32 its products
are plain multiply-adds: 32 heads of 64 with 1024 keys take 322 us on an H100, ours 163, with a
third of the error (codegen/triton/wide.py). Only where the target's
templates take the scores (`Takes`); a mask that is given as it is stays where it is. They work on
Dynamo's graph, before autograd.
"""

from __future__ import annotations

import math
from math import prod

import torch
import torch.nn.functional as F
from torch.fx import Node

from torchweld.capture import torch_private
from torchweld.capture.attention import arguments
from torchweld.capture.constant import example
from torchweld.capture.scores import Scores, Takes

_DEEPEST_GRADIENT = 32
_CALLS = (F.scaled_dot_product_attention, torch.ops.aten.scaled_dot_product_attention.default)


def write_out(gm: torch.fx.GraphModule, takes: Takes | None) -> int:
    """Writes calls out, in place, where `takes` says so; returns how many."""
    changed = 0
    for node in list(gm.graph.nodes) if takes is not None else ():
        if node.op == "call_function" and node.target in _CALLS:
            changed += _write_sdpa(node, takes)
        elif node.target is torch_private.flex_attention:
            changed += _write_flex(node, takes)
    if changed:
        gm.recompile()
    return changed


def _write_sdpa(node: Node, takes: Takes) -> bool:
    given = arguments(node)
    query, key, value = (example(given[n]) for n in ("query", "key", "value"))
    if not isinstance(query, torch.Tensor) or query.dim() != 4:
        return False
    scores = _scores(query, key, value)
    if scores is None or not (_has_computed_mask(given, scores) or _is_wide_on_gpu(given, scores)):
        return False
    if not takes(scores):
        return False
    node.target, node.args, node.kwargs = masked_attention, (), given
    if _is_by_positions(example(node)):
        node.kwargs = given | {"by_positions": True}
    return True


def _is_by_positions(result) -> bool:
    """Whether heads lie inside of positions. torch.export leaves out a copy that makes them so, as
    the library's kernels do: whoever views the heads as one then needs them so."""
    if not isinstance(result, torch.Tensor):
        return False
    return result.transpose(1, 2).is_contiguous() and not result.is_contiguous()


def _has_computed_mask(given: dict, scores: Scores) -> bool:
    if example(given.get("attn_mask")) is None or given.get("is_causal"):
        return False
    return _is_computed(given["attn_mask"], scores.rows * scores.keys)


def _is_wide_on_gpu(given: dict, scores: Scores) -> bool:
    """Without a mask or dropout, of float32 on a GPU. Gradients of deep heads spill: 128 heads
    with 1024 keys take 12.9 ms a step on an H200 with a depth of 128, of 64 11.7; the library's 6.3
    and 3.5. 32 heads of 32 with 2048 keys take 2.3 and 3.1."""
    plain = given.get("attn_mask") is None and not given.get("dropout_p")
    tensors = (example(given[n]) for n in ("query", "key", "value"))
    trains = torch.is_grad_enabled() and any(t.requires_grad for t in tensors)
    fits = scores.depth <= _DEEPEST_GRADIENT or not trains
    return plain and fits and scores.device.type == "cuda" and scores.dtype == torch.float32


def _write_flex(node: Node, takes: Takes) -> bool:
    scores = _scores(*(example(a) for a in node.args[:3]))
    if scores is None or not takes(scores):
        return False
    node.target = torch_private.flex_attention_by_parts
    return True


def _scores(query, key, value) -> Scores | None:
    """Of queries, keys and values [batch, heads, positions, columns], if all sizes are known."""
    tensors = (query, key, value)
    if not all(isinstance(t, torch.Tensor) for t in tensors):
        return None
    if not all(isinstance(s, int) for t in tensors for s in t.shape):
        return None
    batch, heads, rows, depth = query.shape
    return Scores(
        query.dtype, query.device, batch * heads, rows, key.shape[-2], depth, value.shape[-1], True)


def _is_computed(mask: Node, least: int) -> bool:
    """Whether a mask of at least so many elements is made of smaller tensors in the graph."""
    if prod(example(mask).shape[-2:]) < least:
        return False
    seen, todo = set(), [mask]
    while todo:
        node = todo.pop()
        if node in seen:
            continue
        seen.add(node)
        if node.op in ("placeholder", "get_attr") and not _is_small(example(node), least):
            return False
        todo += node.all_input_nodes
    return True


def _is_small(value, least: int) -> bool:
    """A tensor of fewer elements, or no tensor."""
    if not isinstance(value, torch.Tensor):
        return True
    return all(isinstance(s, int) for s in value.shape) and value.numel() < least


def masked_attention(
    query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False,
    by_positions=False,
):  # fmt: skip
    """scaled_dot_product_attention in steps; zero for a query that may see nothing. Scores are in
    float32 at least. `by_positions`: the result is contiguous as [batch, positions, heads,
    columns]."""
    result = _mixed(query, key, value, attn_mask, dropout_p, is_causal, scale)
    return result.transpose(1, 2).contiguous().transpose(1, 2) if by_positions else result


def _mixed(query, key, value, attn_mask, dropout_p, is_causal, scale) -> torch.Tensor:
    groups = query.shape[1] // key.shape[1]
    if groups > 1:
        key, value = (t.repeat_interleave(groups, 1) for t in (key, value))
    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    scores = _widened(query @ key.transpose(-2, -1)) * factor
    if is_causal:
        rows, keys = (torch.arange(n, device=query.device) for n in scores.shape[-2:])
        scores = torch.where(keys <= rows[:, None], scores, -math.inf)
    if attn_mask is None:
        return torch.softmax(scores, -1) @ value
    if attn_mask.dtype == torch.bool:
        scores = torch.where(attn_mask, scores, -math.inf)
    else:
        scores = scores + attn_mask
    shares = torch.ops.aten._safe_softmax.default(scores, -1)
    if dropout_p > 0:
        shares = F.dropout(shares, dropout_p, True)
    return shares.to(value.dtype) @ value


def _widened(x: torch.Tensor) -> torch.Tensor:
    return x if x.dtype in (torch.float32, torch.float64) else x.float()
