"""Programs of losses on the large result of a linear layer, which are made some rows at a time."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import torch

from torchweld.exact.campaign.lines import Lines
from torchweld.exact.programs import Input, Program

ROWS = (2, 3, 7, 16, 20, 33, 64, 65, 96)
CLASSES = (17, 31, 64, 65, 127, 128, 257, 301)
_DEPTHS = (1, 2, 3, 5, 8, 16)
_DTYPES = (torch.float32,) * 4 + (torch.bfloat16, torch.float16)

# `x`: rows, w: weights by classes, `b`: a number for each class, `t`: a label for each row.
LOGITS = (
    "F.linear(x, w)", "F.linear(x, w)", "F.linear(x, w, b)", "x @ w.T", "F.linear(x, w) * 0.5 + b",
    "F.linear(x.sin(), w * 2)", "F.linear(x.to(torch.float32), w.to(torch.float32))",
    "F.linear(x, w).to(torch.float32)", "F.linear(F.rms_norm(x, x.shape[-1:]), w)",
    "F.linear(x[None], w)[0]", "F.linear(x, w).T.contiguous().T",
)  # fmt: skip
CHANGES = (
    "l", "l", "l", "3 * torch.tanh(l / 3)", "l / 2", "l[:-1]", "l[1:]", "l - l.amax(-1, True)",
    "l.masked_fill(torch.arange(l.shape[1]) == 3, -1e4)", "l * l.mean()", "l + l.flip(0)",
    "l.flip(1)", "torch.cat([l, l * 2])", "l[::2]", "l.unflatten(0, (-1, 1))[:, 0]", "l + x.sum()",
)  # fmt: skip
# `l`: the logits; `t` is as long.
LOSSES = (
    "F.cross_entropy(l, t)", "F.cross_entropy(l, t, reduction='sum')",
    "F.cross_entropy(l, t, reduction='none')", "F.cross_entropy(l, t, ignore_index=2)",
    "F.cross_entropy(l, t, label_smoothing=0.1)", "F.cross_entropy(l, l.detach().softmax(-1))",
    "F.cross_entropy(l, t, weight=torch.arange(l.shape[1], dtype=l.dtype) / l.shape[1])",
    "F.nll_loss(l.log_softmax(-1), t, reduction='sum') * 0.01", "F.multi_margin_loss(l, t)",
    "(l.logsumexp(-1) ** 2).mean()", "-l.log_softmax(-1).gather(-1, t[:, None])[:, 0].mean()",
    "(-l.log_softmax(-1) * l.softmax(-1)).sum(-1).mean()", "l.softmax(-1).square().sum()",
    "F.binary_cross_entropy_with_logits(l, F.one_hot(t, l.shape[1]).to(l.dtype))",
    "F.kl_div(l.log_softmax(-1), l.detach().flip(1).softmax(-1), reduction='batchmean')",
    "F.mse_loss(l, l.detach() * 0.5)", "l.log_softmax(-1).amax(-1).mean()", "l.sum(-1)",
    "((1 - (-F.cross_entropy(l, t, reduction='none')).exp()) ** 2).mean()", "l.square().mean()",
    "F.cross_entropy(l, t) + 1e-2 * l.logsumexp(-1).square().mean()",
    "l.softmax(0).square().sum()", "F.logsigmoid(l.log_softmax(-1).gather(-1, t[:, None]).sum())",
    "l.softmax(-1).mean(0)", "F.cross_entropy(l[:5], t[:5]) + F.cross_entropy(l[5:], t[5:])",
    "F.smooth_l1_loss(l, l * 0.3)", "F.cross_entropy(l, t) / (1 + l.square().mean())",
    "F.softplus(l).mean(-1)", "l.softmax(-1) @ w.to(l.dtype)",
    "(l.softmax(-1) @ w.to(l.dtype)).square().mean()",
    "F.gelu(l).sum(-1).mean() + F.cross_entropy(l, t)", "l.var(-1).mean()",
    "F.gelu(l) @ w.to(l.dtype)", "l.T @ l.softmax(-1)[:, :2]", "l.abs().max()",
)  # fmt: skip
ENDS = ("y", "y", "y", "y * 1024", "y / 3", "y.sin()", "y * y", "y.sum() + x.sum()", "y.mean()")


def program(seed: int) -> Program | None:
    """The program of `seed`; None where torch refuses it."""
    rng = Random(seed)
    rows, classes, depth = rng.choice(ROWS), rng.choice(CLASSES), rng.choice(_DEPTHS)
    dtype = rng.choice(_DTYPES)
    lines = Lines(_inputs(rng, rows, classes, depth, dtype), rng)
    for name, expression in (("x", "x0"), ("w", "x1"), ("b", "x2")):
        lines.set(name, expression)
    lines.set("l", rng.choice(LOGITS))
    lines.set("l", rng.choice(CHANGES))
    lines.set("t", "(x3 * 1664525 % l.shape[1]).repeat(2)[: l.shape[0]]")
    lines.set("y", rng.choice(LOSSES))
    lines.set("y", rng.choice(ENDS))
    found = lines.program("y", *(["l"] if rng.random() < 0.05 else []))
    return found and replace(found, small_chunks=rng.random() < 0.9)


def _inputs(rng: Random, rows: int, classes: int, depth: int, dtype: torch.dtype) -> list[Input]:
    def given(shape: tuple[int, ...], dtype: torch.dtype = dtype) -> Input:
        layout = rng.choice(("plain", "plain", "plain", "permuted", "gaps"))
        values = rng.choice(("normal",) * 9 + ("hard",))
        return Input(shape, dtype, layout, values, rng.randrange(4))

    return [given((rows, depth)), given((classes, depth)), given((classes,)),
            given((rows,), torch.int64)]  # fmt: skip
