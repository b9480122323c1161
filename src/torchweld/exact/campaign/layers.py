"""Programs of chains of layers: products with biases and what reads them, pointwise results in the
memory of operands, norms, convolutions, pooling."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import torch

from torchweld.exact.campaign.lines import Lines
from torchweld.exact.programs import Input, Program

WIDTHS = (1, 2, 3, 5, 8, 16, 17, 31, 33, 64, 65, 96, 130)
_ROWS = (1, 2, 3, 4, 5, 7, 16, 33, 65, 100)
_SIDES = (1, 2, 3, 5, 7, 8, 13, 17)
_DTYPES = (torch.float32,) * 5 + (torch.bfloat16, torch.float16)

# `h`: rows of features. {w}: a weight for as many, {b}: a bias for its results, {n}: how many.
PRODUCTS = (
    "F.linear(h, {w}, {b})", "F.linear(h, {w}, {b})", "F.linear(h, {w})", "h @ {w}.T + {b}",
    "torch.addmm({b}, h.flatten(0, -2), {w}.T)",
    "torch.addmm({b}, h.flatten(0, -2), {w}.T, beta=2)", "F.linear(h, {w}, {b}[:1].expand({n}))",
    "F.linear(h, {w}, {b} * 2)", "F.linear(h, {w}, {w}[:, 0])",
    "torch.addmm({b}[:, None], {w}, h.flatten(0, -2).T).T",
    "F.linear(h, {w}, {b}) * F.linear(h, {w})",
    "F.linear(h, {w}[:1], {b}[:1]) + F.linear(h, {w}, {b})",
    "torch.addmm(h[:1] @ {w}.T, h, {w}.T)", "F.linear(h.mT.contiguous().mT, {w}, {b})",
    "torch.bmm(h[None], {w}.T[None])[0] + {b}",
)  # fmt: skip
BETWEEN = (
    "F.gelu(h)", "F.relu(h)", "F.silu(h) * h", "h.sin() * 2", "F.gelu(h, approximate='tanh')",
    "F.layer_norm(h, h.shape[-1:])", "F.rms_norm(h, h.shape[-1:]) + h", "h.softmax(-1)",
    "h * x0.mean()", "h.flip(-1)", "h.roll(1, 0) + h", "h.T.contiguous().T", "h[..., :-1]",
    "h[1:]", "h - h.mean(0)", "torch.cat([h, h * 2], -1)", "h.transpose(0, 1)",
    "h.cumsum(-1) * 0.1", "h.clone().mul_(2).add_(1)", "h + h.amax(-1, keepdim=True)",
    "h * h.sigmoid() + h.tanh()", "h / (1 + h.abs())", "h ** 2", "torch.where(h > 0, h, h * 0.1)",
    "h.chunk(2, -1)[0] * h.chunk(2, -1)[-1].sigmoid()", "h.exp().log1p()",
    "F.normalize(h, dim=-1)", "(h.unsqueeze(0) + h[:1]).squeeze(0)", "h * 2 + h.sum()",
)  # fmt: skip
# `h`: images.
IMAGES = (
    "F.max_pool2d(h, 2)", "F.max_pool2d(h, 3, 2, 1)", "F.max_pool2d(h, (2, 3), (1, 2), (1, 1))",
    "F.max_pool2d(h, 3, 1, 1, 2)", "F.max_pool2d(h, 3, 2, 1, ceil_mode=True)",
    "F.max_pool2d(h, 5, 1, 2)", "F.avg_pool2d(h, 2)",
    "F.avg_pool2d(h, 3, 2, 1, count_include_pad=False)", "F.relu(h)", "h - 1",
    "F.adaptive_avg_pool2d(h, 2)", "F.adaptive_avg_pool2d(h, 1)", "F.adaptive_max_pool2d(h, 2)",
    "F.interpolate(h, scale_factor=2)", "F.pad(h, (1, 1, 0, 1))",
    "F.pad(h, (1, 1, 1, 1), mode='reflect')", "F.group_norm(h, 1)", "F.instance_norm(h)",
    "h.flip(-1)", "h.mT.contiguous().mT", "h[..., 1:, :-1]",
    "F.conv2d(h, x1[: h.shape[1]][:, None], padding=1, groups=h.shape[1])", "h.softmax(1)",
    "F.conv2d(h, x1[:6].view(2, 3, 3, 3)[:, : h.shape[1]])",
    "F.conv2d(h, x1[:, None].repeat(1, h.shape[1], 1, 1), stride=2, padding=1)",
    "F.conv_transpose2d(h, x1[:1].repeat(h.shape[1], 2, 1, 1), stride=2)",
    "F.batch_norm(h, None, None, training=True)", "h * 2 + h",
    "h.contiguous(memory_format=torch.channels_last)", "F.pixel_shuffle(torch.cat([h] * 4, 1), 2)",
    "F.unfold(h, 2).unflatten(-1, (1, -1))[:, None, :, 0]", "h.amax((2, 3), keepdim=True) * h",
    "F.max_pool2d(F.relu(h), 3, 2, 1) * 2", "F.max_pool2d(-h, 2, 1) + h.mean()",
)  # fmt: skip


def program(seed: int) -> Program | None:
    """The program of `seed`; None where torch refuses it."""
    rng = Random(seed)
    return _images(rng) if rng.random() < 0.35 else _rows(rng)


def _rows(rng: Random) -> Program | None:
    """Two or three products with operations between."""
    dtype, widths = rng.choice(_DTYPES), [rng.choice(WIDTHS) for _ in range(4)]
    given = [_given(rng, (rng.choice(_ROWS), widths[0]), dtype)]
    for before, after in pairwise(widths):
        given += [_given(rng, (after, before), dtype), _given(rng, (after,), dtype)]
    lines = Lines(given, rng)
    lines.set("h", "x0")
    lines.set("h", rng.choice(BETWEEN + ("h",) * 20))
    for k in range(rng.choice((1, 2, 2, 3))):
        weight, bias = f"x{2 * k + 1}", f"x{2 * k + 2}"
        if k:
            lines.set("h", f"F.pad(h.flatten(0, -2), (0, {widths[k]} - h.shape[-1]))")
        lines.set("h", rng.choice(PRODUCTS).format(w=weight, b=bias, n=widths[k + 1]))
        for _ in range(rng.choice((0, 1, 1, 2))):
            lines.set("h", rng.choice(BETWEEN))
        if rng.random() < 0.15:
            lines.set(f"u{k}", "h * 1")
    kept = [f"u{k}" for k in range(3) if f"u{k}" in lines.values]
    return lines.program("h", *kept)


def _images(rng: Random) -> Program | None:
    """Up to five operations on images."""
    dtype = rng.choice(_DTYPES)
    sides = rng.choice(_SIDES), rng.choice(_SIDES)
    shape = (rng.choice((1, 2, 3)), rng.choice((1, 2, 3, 4)), *sides)
    lines = Lines([_given(rng, shape, dtype), Input((6, 3, 3), dtype)], rng)
    lines.set("h", "x0")
    for _ in range(rng.choice((1, 2, 3, 4, 5))):
        lines.set("h", rng.choice(IMAGES))
    return lines.program("h")


def _given(rng: Random, shape: tuple[int, ...], dtype: torch.dtype) -> Input:
    layout = rng.choice(("plain",) * 4 + ("permuted", "gaps", "expanded"))
    if len(shape) == 1 and layout == "expanded":
        layout = "plain"  # what a norm makes of equal numbers is rounding
    values = rng.choice(("normal",) * 6 + ("offset", "hard"))
    return Input(shape, dtype, layout, values, rng.randrange(4))
