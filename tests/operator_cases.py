"""torchweld.ops beside the same in eager, written in another way, with inputs of odd sizes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from torchweld import ops
from torchweld.operators.table import Operator

ROWS, COLUMNS, CLASSES = (3, 5), 37, 61


@dataclass(frozen=True)
class Case:
    """`shapes` of float inputs; `labels` and `mask`, if any, follow them."""

    name: str
    ours: Callable
    eager: Callable
    shapes: tuple[tuple[int, ...], ...]
    labels: bool = False
    mask: tuple[int, ...] = ()

    def inputs(self, dtype=torch.float32, seed: int = 0) -> list[torch.Tensor]:
        g = torch.Generator().manual_seed(seed)
        made = [torch.randn(s, generator=g).to(dtype).requires_grad_() for s in self.shapes]
        if self.labels:
            labels = torch.randint(0, CLASSES, self.shapes[0][:-1], generator=g)
            labels.view(-1)[1] = -100
            made.append(labels)
        if self.mask:
            made.append(torch.rand(self.mask, generator=g) > 0.3)
        return made


def _rms(x, weight, offset=0.0):
    wide = x.float() if x.dtype == torch.bfloat16 else x
    y = (wide / (wide.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt()).to(x.dtype)
    return y * (weight + offset)


def _gemma(x, weight):
    wide = x.float() if x.dtype == torch.bfloat16 else x
    return (_rms(wide, weight.to(wide.dtype), 1.0)).to(x.dtype)


def _add_rms(x, r, weight):
    return _rms(x + r, weight), x + r


def _add_layer(x, r, weight, bias):
    return F.layer_norm(x + r, x.shape[-1:], weight, bias, 1e-5), x + r


def _mlp(x, gate, up, down, bias):
    return F.linear(F.silu(F.linear(x, gate, bias)) * F.linear(x, up, bias), down)


def _softcap(score, batch, head, row, key, bias):
    return 5 * torch.tanh(score / 5) + bias[head] * (key - row)


ops.score_function("test_softcap_alibi")(_softcap)


def _softcapped(q, k, v, slopes):
    k, v = k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)
    rows, keys = (torch.arange(x.shape[2], device=q.device) for x in (q, k))
    rows = rows[:, None]
    scores = q @ k.mT / q.shape[-1] ** 0.5
    scores = 5 * torch.tanh(scores / 5) + slopes[:, None, None] * (keys - rows)
    return scores.softmax(-1) @ v


def _causal(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def _rotary(q, k, cos, sin):
    def one(x):
        a, b = x.chunk(2, -1)
        turned = torch.cat((-b, a), -1)
        return x * cos[:, None] + turned * sin[:, None]

    return one(q), one(k)


def _pairs(q, k, cos, sin):
    def one(x):
        turned = torch.stack((-x[..., 1::2], x[..., 0::2]), -1).reshape(x.shape)
        return x * cos[:, :, None] + turned * sin[:, :, None]

    return one(q), one(k)


def _masked_softmax(x, mask):
    return (x * 0.5).masked_fill(~mask, -torch.inf).softmax(-1)


def _causal_log_softmax(x):
    hidden = torch.ones_like(x, dtype=torch.bool).triu(1)
    return x.masked_fill(hidden, -torch.inf).log_softmax(-1).masked_fill(hidden, 0.0)


def _z(logits, labels, scale=1e-2):
    z = scale * logits.logsumexp(-1).pow(2)
    return z[labels != -100].mean()


def _wide_loss(logits, labels, **rest):
    logits = logits.float() if logits.dtype == torch.bfloat16 else logits
    capped = 4 * torch.tanh(logits / 4)
    return F.cross_entropy(capped, labels, **rest) + _z(capped, labels)


def _linear_loss(x, weight, bias, labels):
    logits = F.linear(x, weight, bias).flatten(0, -2)
    logits = logits.float() if x.dtype == torch.bfloat16 else logits
    return F.cross_entropy(logits, labels.view(-1), reduction="sum")


X, W = (*ROWS, COLUMNS), (COLUMNS,)
HEADS = ((2, 4, 9, 16), (2, 2, 11, 16), (2, 2, 11, 16))
SAME = ((2, 2, 9, 16),) * 3
CASES = (
    Case("rms_norm", ops.rms_norm, _rms, (X, W)),
    Case("gemma_norm", lambda x, w: ops.rms_norm(x, w, offset=1.0, casting="gemma"), _gemma,
         (X, W)),
    Case("add_rms_norm", ops.add_rms_norm, _add_rms, (X, X, W)),
    Case("layer_norm", ops.layer_norm, lambda x, w, b: F.layer_norm(x, (COLUMNS,), w, b),
         (X, W, W)),
    Case("add_layer_norm", ops.add_layer_norm, _add_layer, (X, X, W, W)),
    Case("swiglu", ops.swiglu, lambda g, u: F.silu(g) * u, (X, X)),
    Case("geglu", ops.geglu, lambda g, u: F.gelu(g, approximate="tanh") * u, (X, X)),
    Case("gated_mlp", lambda x, g, u, d, b: ops.gated_mlp(x, g, u, d, gate_bias=b, up_bias=b),
         _mlp, (X, (43, 37), (43, 37), (37, 43), (43,))),
    Case("attention", lambda q, k, v: ops.attention(q, k, v, score="causal"), _causal, SAME),
    Case("score", lambda *a: ops.attention(*a, score="test_softcap_alibi"), _softcapped,
         (*HEADS, (4,))),
    Case("softmax", lambda x, m: ops.softmax(x, m, scale=0.5), _masked_softmax, (X,),
         mask=(5, COLUMNS)),
    Case("log_softmax", lambda x: ops.log_softmax(x, causal=True).where(
        torch.ones_like(x, dtype=torch.bool).tril(), 0.0), _causal_log_softmax, ((7, 7),)),
    Case("rotary", ops.rotary, _rotary, ((2, 4, 5, 16), (2, 1, 5, 16), (1, 5, 16), (1, 5, 16))),
    Case("rotary_pairs", lambda *a: ops.rotary(*a, head_dim=2, interleaved=True), _pairs,
         ((2, 5, 4, 16), (2, 5, 1, 16), (2, 5, 16), (2, 5, 16))),
    Case("cross_entropy", lambda x, t: ops.cross_entropy(
        x, t, label_smoothing=0.1, softcap=4.0, lse_square_scale=1e-2),
         lambda x, t: _wide_loss(x, t, label_smoothing=0.1), ((15, CLASSES),), labels=True),
    Case("z_loss", lambda x, t: ops.z_loss(x, t, lse_square_scale=1e-2), lambda x, t: _z(
        x.float() if x.dtype == torch.bfloat16 else x, t), ((15, CLASSES),), labels=True),
    Case("linear_cross_entropy", lambda x, w, b, t: ops.linear_cross_entropy(
        x, w, t, b, reduction="sum"), _linear_loss, (X, (CLASSES, COLUMNS), (CLASSES,)),
         labels=True),
)  # fmt: skip


def step(function: Callable, inputs) -> list[torch.Tensor]:
    """Results, and gradients of a fixed combination of them."""
    args = [a.detach().requires_grad_(a.requires_grad) for a in inputs]
    made = function(*args)
    results = list(made) if isinstance(made, tuple) else [made]
    factors = [torch.arange(t.numel(), device=t.device).view(t.shape).cos().to(t.dtype)
               for t in results]  # fmt: skip
    ends = [a for a in args if a.requires_grad]
    return [t.detach() for t in results] + list(torch.autograd.grad(results, ends, factors))


def exact(inputs) -> list[torch.Tensor]:
    return [a.detach().double().requires_grad_() if a.is_floating_point() else a for a in inputs]


class _Stop(Exception):
    pass


def arguments(row: Operator) -> tuple:
    """What the operator itself is given in its case."""
    seen = []

    def spy(*args):
        seen.append(args)
        raise _Stop

    name = {"gated": "swiglu"}.get(row.name, row.name)
    case = next(c for c in CASES if c.name == name)
    before = ops._OPS[row.name]
    ops._OPS[row.name] = spy
    try:
        with torch.no_grad(), contextlib.suppress(_Stop):
            case.ours(*case.inputs())
    finally:
        ops._OPS[row.name] = before
    return seen[0]
