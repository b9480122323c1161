"""Arithmetic of matrix products, convolutions and attention, by their formulas."""

from __future__ import annotations

import re
from math import prod

from torch.utils.flop_counter import flop_registry

from torchweld.observe.measure.metas import Meta, as_tensors, metas_in

_ATTENTION = re.compile(r"aten\._(scaled_dot_product|flash|efficient)\w*attention\w*")
_GEMMS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::_addmm_activation")
_BLOCK = 128  # rows that attention takes together

# Problems that stand for several operators; `large.py` measures their rates.
ATTENTION = "attention"  # whichever operator the device takes for it
POINTWISE = "aten::convolution 1x1"
BACKWARD, POINTWISE_BACKWARD = "aten::convolution_backward", "aten::convolution_backward 1x1"
SCATTERED = "scattered"  # results a second, where a pointwise operator cannot take vectors (GPU)
TURNED = "turned"  # the same where an operand lies turned against the result (CPU)
_LIKE = {
    "aten::addmm": "aten::mm",
    "aten::_addmm_activation": "aten::mm",
    "aten::bmm": "aten::mm",
    "aten::baddbmm": "aten::mm",
}


def product_flops(op, args: tuple, kwargs: dict, results) -> float | None:
    """2 for each multiply-add of a product, a convolution or attention; None for other calls."""
    packet = getattr(op, "overloadpacket", None)
    if _ATTENTION.fullmatch(str(packet)):
        causal = _is_causal(op, args, kwargs)
        return _attention_flops(metas_in(args), "backward" in str(packet), causal)
    count = flop_registry.get(packet)
    if count is None:
        return None
    first = results[0] if isinstance(results, tuple) and "backward" not in str(op) else results
    given = as_tensors((args, kwargs, first))
    try:
        return float(count(*given[0], **given[1], out_val=given[2]))
    except (TypeError, ValueError, RuntimeError, AssertionError, IndexError):
        return None  # arguments that torch's own counter does not know


def gemm_of(operator: str, given: list[Meta], made: list[Meta]) -> tuple | None:
    """(batch, rows, columns, depth) of a product or a convolution by ATen."""
    if operator in _GEMMS:
        left, right = given[-2:]
        return prod(left.shape[:-2]), left.shape[-2], right.shape[-1], left.shape[-1]
    if operator == "aten::convolution":
        weight, result = given[1].shape, made[0].shape
        return 1, result[0] * prod(result[2:]), weight[0], prod(weight[1:])
    return None


def like(operator: str, given: list[Meta]) -> str:
    """The problem whose rate a product by `operator` should reach."""
    if "attention" in operator:
        return ATTENTION
    if operator == "aten::convolution" and prod(given[1].shape[2:]) == 1:
        return POINTWISE
    if operator == BACKWARD and prod(given[2].shape[2:]) == 1:  # behind the gradient of the result
        return POINTWISE_BACKWARD
    return _LIKE.get(operator, operator)


def _is_causal(op, args: tuple, kwargs: dict) -> bool:
    """Whether only half of the scores are needed."""
    names = [argument.name for argument in op._schema.arguments]
    return bool((dict(zip(names, args)) | kwargs).get("is_causal"))


def _attention_flops(tensors: list[Meta], backward: bool, causal: bool) -> float:
    """Two products, or the seven of its gradient less two that are saved: softmax is left out.
    `causal`: of the blocks below the diagonal, and on it."""
    query, key, value = tensors[1:4] if backward else tensors[:3]  # its own gradient comes first
    batch, heads, rows, width = query.shape
    one = 2.0 * batch * heads * rows * key.shape[-2]
    one *= min(1.0, (rows + _BLOCK) / (2 * max(rows, 1))) if causal else 1.0
    return one * (width + value.shape[-1]) * (2.5 if backward else 1.0)


