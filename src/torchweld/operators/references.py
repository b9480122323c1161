"""The operators, each in its few lines of PyTorch. Kernels and gradients are generated from these:
what an operator means is what stands here.

Values of 16 bits are computed with in float32, results have the type of the first input, losses are
in float32 at least.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from torchweld.capture.random import UNIFORM

Score = Callable[..., Tensor]


def wide(x: Tensor) -> Tensor:
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


# -- norms


def rms_norm(x: Tensor, weight: Tensor | None, eps: float, offset: float, casting: str) -> Tensor:
    """x / rms(x) * (weight + offset). `casting` says what is in float32: "llama" the norm, "gemma"
    the weight too, "none" nothing."""
    y = x if casting == "none" else wide(x)
    y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + eps)
    if casting != "gemma":
        y = y.to(x.dtype)
    if weight is not None:
        scale = wide(weight) if casting == "gemma" else weight
        y = y * (scale + offset if offset else scale)
    return y.to(x.dtype) if casting == "gemma" else y


def add_rms_norm(x, residual, weight, eps: float, offset: float, casting: str):
    total = x + residual
    return rms_norm(total, weight, eps, offset, casting), total


def layer_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], weight, bias, eps)


def add_layer_norm(x, residual, weight, bias, eps: float):
    total = x + residual
    return layer_norm(total, weight, bias, eps), total


# -- gated MLPs

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
    "sigmoid": torch.sigmoid,
}


def gated(gate: Tensor, up: Tensor, activation: str) -> Tensor:
    return ACTIVATIONS[activation](gate) * up


def gated_mlp(x, gate, up, down, gate_bias, up_bias, down_bias, activation: str) -> Tensor:
    hidden = gated(F.linear(x, gate, gate_bias), F.linear(x, up, up_bias), activation)
    return F.linear(hidden, down, down_bias)


# -- attention

SCORES: dict[str, Score] = {}


def no_score(score, batch, head, row, key, bias):
    return score if bias is None else score + bias


def causal_score(score, batch, head, row, key, bias):
    return torch.where(key <= row, no_score(score, batch, head, row, key, bias), -math.inf)


SCORES |= {"none": no_score, "causal": causal_score}


def attention(query, key, value, bias, score: str, scale: float) -> Tensor:
    """softmax(f(q k^T * scale)) v; query [batch, heads, rows, depth], key and value [batch, shared
    heads, keys, depth]. A row that sees no key is zero."""
    groups = query.shape[1] // key.shape[1]
    if groups > 1:
        key, value = (t.repeat_interleave(groups, 1) for t in (key, value))
    scores = wide(query @ key.transpose(-2, -1)) * scale
    places = (_positions(scores, dim) for dim in range(4))
    shares = torch.ops.aten._safe_softmax.default(SCORES[score](scores, *places, bias), -1)
    return shares.to(value.dtype) @ value


def _positions(scores: Tensor, dim: int) -> Tensor:
    """0, 1, 2, ... along one of four dimensions."""
    shape = [-1 if d == dim else 1 for d in range(4)]
    return torch.arange(scores.shape[dim], device=scores.device).view(shape)


def softmax(x: Tensor, mask: Tensor | None, scale: float, causal: bool) -> Tensor:
    return torch.softmax(_masked(x, mask, scale, causal), -1).to(x.dtype)


def log_softmax(x: Tensor, mask: Tensor | None, scale: float, causal: bool) -> Tensor:
    return torch.log_softmax(_masked(x, mask, scale, causal), -1).to(x.dtype)


def _masked(x: Tensor, mask: Tensor | None, scale: float, causal: bool) -> Tensor:
    x = wide(x) * scale
    if mask is not None:
        x = torch.where(mask, x, -math.inf) if mask.dtype == torch.bool else x + mask
    if causal:
        row, key = (torch.arange(n, device=x.device) for n in x.shape[-2:])
        x = torch.where(key <= row[:, None], x, -math.inf)
    return x


# -- rotary embedding


def rotary(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, head_dim: int, interleaved: bool):
    """Pairs of columns turned by angles: column i with i + half, or neighbours if `interleaved`.
    cos, sin: [batch or 1, positions, columns], without the heads' dimension `head_dim`."""
    cos, sin = cos.unsqueeze(head_dim), sin.unsqueeze(head_dim)
    return tuple((x * cos + _turned(x, interleaved) * sin).to(x.dtype) for x in (q, k))


def _turned(x: Tensor, interleaved: bool) -> Tensor:
    if interleaved:
        return torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)
    half = x.shape[-1] // 2
    return torch.cat((-x[..., half:], x[..., :half]), -1)


# -- losses


def cross_entropy(
    logits, target, class_weight, ignore_index: int, label_smoothing: float,
    lse_square_scale: float, softcap: float | None, reduction: str,
) -> Tensor:  # fmt: skip
    """Of logits [rows, classes]; plus lse_square_scale * logsumexp(logits)^2 for each row."""
    logits = _capped(logits, softcap)
    weight = None if class_weight is None else class_weight.to(logits.dtype)
    loss = F.cross_entropy(
        logits, target, weight, ignore_index=ignore_index, reduction=reduction,
        label_smoothing=label_smoothing,
    )  # fmt: skip
    if lse_square_scale:
        loss = loss + _z_loss(logits, target, ignore_index, lse_square_scale, reduction)
    return loss


def z_loss(logits, target, ignore_index, lse_square_scale, softcap, reduction) -> Tensor:
    logits = _capped(logits, softcap)
    return _z_loss(logits, target, ignore_index, lse_square_scale, reduction)


def _capped(logits: Tensor, softcap: float | None) -> Tensor:
    logits = wide(logits)
    return logits if softcap is None else softcap * torch.tanh(logits / softcap)


def _z_loss(logits, target, ignore_index, scale, reduction) -> Tensor:
    counted = target != ignore_index
    each = torch.where(counted, scale * torch.logsumexp(logits, -1).square(), 0.0)
    if reduction == "none":
        return each
    return each.sum() / counted.sum() if reduction == "mean" else each.sum()


def linear_cross_entropy(x, weight, target, bias, *rest) -> Tensor:
    """cross_entropy(x weight^T + bias, target)"""
    return cross_entropy(F.linear(x, weight, bias), target, *rest)


# -- dropout


def dropout_add(x: Tensor, residual: Tensor, seed: Tensor, p: float) -> Tensor:
    """dropout(x) + residual; which elements are dropped is a function of the seed."""
    kept = UNIFORM(seed, x.shape) >= p
    return x * kept * (0.0 if p == 1 else 1.0 / (1.0 - p)) + residual
