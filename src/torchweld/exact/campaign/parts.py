"""Programs that read a part of a result (a row, a column, one element, all of it backwards) beside
the whole. A kernel that has the whole at hand may take the wrong part of it for the right one."""

from __future__ import annotations

from random import Random

import torch

from torchweld.exact.campaign.lines import Lines
from torchweld.exact.programs import Input, Program

_WIDTHS = (1, 2, 3, 5, 8, 16, 17, 33, 64, 65, 96, 130)
_ROWS = (1, 2, 3, 4, 7, 16, 33, 65, 100)
_BATCHES = ((),) * 5 + ((2,), (3,), (2, 2))
_DTYPES = (torch.float32,) * 3 + (torch.bfloat16,) * 2 + (torch.float16,)

# `h`: rows of features. {w}, {b}: a weight and a bias.
MAKERS = (
    "F.linear(h, {w})", "F.linear(h, {w}, {b})", "F.relu(F.linear(h, {w}))", "h @ {w}.mT",
    "F.gelu(F.linear(h, {w}, {b}))", "F.layer_norm(F.linear(h, {w}), {w}.shape[:1])",
    "F.linear(F.rms_norm(h, h.shape[-1:]), {w})", "F.linear(h, {w}).softmax(-1)",
    "F.linear(h.softmax(-1), {w})", "F.layer_norm(h, h.shape[-1:])", "F.rms_norm(h, h.shape[-1:])",
    "h.softmax(-1)", "h.softmax(-2)", "h.log_softmax(-1)", "F.normalize(h, dim=-1)",
    "h - h.mean(-2, keepdim=True)", "h * h.sum(-1, keepdim=True)", "h.cumsum(-1) * 0.1",
    "h / (1 + h.square().sum(-2, keepdim=True))", "(h @ h.mT * 0.1).softmax(-1) @ h",
    "h @ h.mT * 0.1", "h.amax(-1, keepdim=True) - h", "F.linear(h, {w}) * F.linear(h, {w}).tanh()",
    "F.silu(F.linear(h, {w}, {b})) * F.linear(h, {w})", "h.mT.contiguous().mT * 2",
)  # fmt: skip
# `h`: what was made. Broadcast against it.
PARTS = (
    "h[..., :1, :]", "h[..., -1:, :]", "h[..., 1:2, :]", "h[..., 0, :].unsqueeze(-2)",
    "h[..., :1]", "h[..., -1:]", "h[..., 1:2]", "h[..., 0].unsqueeze(-1)", "h[..., :1, :1]",
    "h[..., -1:, -1:]", "h[:1]", "h[-1:]", "h.flip(-2)", "h.flip(-1)", "h.flip(0)", "h.roll(1, -2)",
    "h.roll(-1, -1)", "h[..., :1, :].expand_as(h)", "h[..., :1].expand_as(h).contiguous()",
    "h[..., -1:, :].mean(-1, keepdim=True)", "h[..., :1].sum(-2, keepdim=True)",
    "h[..., 1:, :].sum(-2, keepdim=True)", "h[..., ::2].sum(-1, keepdim=True)",
    "torch.cat([h[..., 1:, :], h[..., :1, :]], -2)", "h.index_select(-2, torch.tensor([0]))",
    "h[..., :1, :].relu()", "h[..., -1:].sin()", "h[..., :1, :] * h[..., -1:, :]",
    "h[..., :1, :] + h[..., :1]", "h.flip(-2)[..., :1, :]", "h.flip(-1)[..., 1:2]",
    "h[..., :1, :].softmax(-1)", "h[..., :1].softmax(-2)", "h.amax(-2, keepdim=True)",
)  # fmt: skip
# `p`: the part.
READERS = (
    "F.linear(h + p, {w})", "F.linear(h * p, {w}, {b})", "F.linear(F.relu(h - p), {w})",
    "F.linear(h, {w}) + F.linear(p.expand_as(h), {w})", "F.linear(h, {w}) * p.mean()",
    "torch.baddbmm(p @ {w}.mT, h, {w}.mT.expand(len(h), -1, -1))",
    "torch.addmm(p @ {w}.mT, h, {w}.mT)", "F.layer_norm(h + p, h.shape[-1:])",
    "F.rms_norm(h * p, h.shape[-1:])", "(h + p).softmax(-1)", "(h - p).softmax(-2)",
    "(h * p).sum(-1, keepdim=True) + h", "(h * p).sum(-2, keepdim=True) - h",
    "(h + p).square().mean(-1, keepdim=True) * h", "torch.where(h > p, h, p)",
    "h @ (h + p).mT * 0.1", "((h + p) @ h.mT * 0.1).softmax(-1) @ h", "h * (h * p).sum()",
    "(h @ h.mT * 0.1).softmax(-1) @ (h + p)", "torch.cat([h, p.expand_as(h)], -1)",
    "torch.cat([p, h], -2)", "(h + p).cumsum(-1) * 0.1", "F.normalize(h, dim=-1) + p",
    "h.softmax(-1) * p", "F.layer_norm(h, h.shape[-1:]) - p", "F.gelu(h + p)", "(h - p).sin()",
    "F.layer_norm(F.linear(h + p, {w}), {w}.shape[:1])", "F.linear(h + p, {w}).softmax(-1)",
)  # fmt: skip


def program(seed: int) -> Program | None:
    """The program of `seed`; None where torch refuses it."""
    rng = Random(seed)
    dtype, shape = rng.choice(_DTYPES), (rng.choice(_ROWS), rng.choice(_WIDTHS))
    lines = Lines([_given(rng, rng.choice(_BATCHES) + shape, dtype)], rng)
    kept = []
    lines.set("h", "x0")
    for k in range(rng.choice((1, 1, 2))):
        _layer(lines, rng.choice(MAKERS))
        lines.set("p", rng.choice(PARTS))
        if rng.random() < 0.1:
            kept.append(f"u{k}")
            lines.set(kept[-1], rng.choice(("p * 1", "h * 1")))
        _layer(lines, rng.choice(READERS))
    return lines.program("h", *kept)


def _layer(lines: Lines, expression: str) -> None:
    """h = expression, with a weight and a bias that fit."""
    if "{w}" in expression and not lines.refused:
        h = lines.values["h"]
        results, depth = lines.rng.choice(_WIDTHS), h.shape[-1]
        names = {"w": lines.given(_given(lines.rng, (results, depth), h.dtype))}
        if "{b}" in expression:
            names["b"] = lines.given(_given(lines.rng, (results,), h.dtype))
        expression = expression.format(**names)
    lines.set("h", expression)


def _given(rng: Random, shape: tuple[int, ...], dtype: torch.dtype) -> Input:
    layout = rng.choice(("plain",) * 6 + ("permuted", "gaps"))
    return Input(shape, dtype, layout, rng.choice(("normal",) * 7 + ("offset",)), rng.randrange(4))
