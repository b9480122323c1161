"""Programs of convolutions as networks have them: of eight channels and more, in 16 bits most
often, transposed, in groups, with norms and gates between, and skips that are added to what comes
later, or stand beside it. A kernel that has a convolution's results at hand may write them where
another of these lies, or a part of them."""

from __future__ import annotations

from random import Random

import torch

from torchweld.exact.campaign.lines import Lines
from torchweld.exact.programs import Input, Program

_CHANNELS = (8, 8, 16, 16, 24, 32, 40, 64)
_SIDES = (1, 2, 3, 4, 5, 6, 7, 8, 9, 12)
_RANKS = (2, 2, 2, 1, 3)
_DTYPES = (torch.bfloat16,) * 4 + (torch.float16,) + (torch.float32,) * 2
_MOST = 1 << 15  # elements of a result

# The window of a convolution, and how it moves. {g}: groups.
MOVES = (
    *[(3, "padding=1")] * 4, *[(1, "")] * 3, (3, "stride=2, padding=1"), (2, "stride=2"), (3, ""),
    (5, "padding=2"), (3, "padding=2, dilation=2"), (3, "padding=1, groups={g}"),
    (4, "stride=2, padding=1"), (1, "groups={g}"), (3, "padding=1, stride=2, groups={g}"),
)  # fmt: skip
TRANSPOSED = (
    *[(2, "stride=2")] * 3, *[(4, "stride=2, padding=1")] * 2, (3, "padding=1"),
    (3, "stride=2, padding=1, output_padding=1"), (3, "stride=2"), (4, "stride=4"),
    (2, "stride=2, groups={g}"), (3, "stride=2, padding=1"),
)  # fmt: skip
# `h`: images.
BETWEEN = (
    *["F.relu(h)", "F.silu(h)", "F.group_norm(h, 4)", "F.instance_norm(h)"] * 2, "F.gelu(h)",
    "F.leaky_relu(h, 0.1)", "h.tanh() + 1", "F.group_norm(h, h.shape[1])", "F.group_norm(h, 1)",
    "F.batch_norm(h, None, None, training=True)", "h * h.flatten(2).mean(2)[(..., *[None] * {r})]",
    "h.chunk(2, 1)[0] * h.chunk(2, 1)[1].sigmoid()", "h[:, 1:]", "h[:, : h.shape[1] // 2]",
    "h[:, ::2]", "h[..., 1:]", "h[..., ::2]", "F.pad(h, (1, 2))", "F.pad(h, (0, 0) * {r} + (0, 4))",
    "F.pad(h, (0, 0) * {r} + (3, 0), value=2.0)", "h.flip(-1)", "h.flip(1)", "h.roll(1, -1)",
    "h.softmax(1)", "F.max_pool{r}d(h, 2)", "F.avg_pool{r}d(h, 2)", "F.max_pool{r}d(h, 3, 2, 1)",
    "F.interpolate(h, scale_factor=2)", "h.movedim(1, -1).contiguous().movedim(-1, 1)",
    "h - h.mean(1, keepdim=True)", "F.normalize(h, dim=1)", "torch.cat([h, h * 2], 1)",
    "F.layer_norm(h.movedim(1, -1), h.shape[1:2]).movedim(-1, 1)", "torch.cat([h.relu(), -h], 1)",
    "torch.stack([h, -h], 2).flatten(1, 2)", "torch.cat([h, h], 0)", "h[:1]",
    "torch.cat([h[..., :1], h, h[..., -1:]], -1)", "h.unflatten(1, (2, -1)).flip(1).flatten(1, 2)",
)  # fmt: skip
# `s`: images of earlier, as large as `h`, maybe of other channels.
SKIPS = (
    *["torch.cat([h, s], 1)"] * 3, "torch.cat([s, h], 1)", "torch.cat([F.relu(h), s], 1)",
    "torch.cat([h[:, :3], s, h[:, 3:]], 1)", "h + s.mean(1, keepdim=True)",
    "h * s[:, :1].sigmoid()", "torch.cat([h + 1, F.silu(s)], 1)", "torch.cat([h, s, h * 2], 1)",
)  # fmt: skip
SUMS = ("h + s", "s - h", "F.relu(h + s)", "h * s.sigmoid()", "torch.where(s > 0, h, s)")


def program(seed: int) -> Program | None:
    """The program of `seed`; None where torch refuses it."""
    rng = Random(seed)
    dtype, rank = rng.choice(_DTYPES), rng.choice(_RANKS)
    sides = tuple(rng.choice(_SIDES[: 6 if rank == 3 else None]) for _ in range(rank))
    shape = (rng.choice((1, 2, 2, 3)), rng.choice(_CHANNELS), *sides)
    lines = Lines([_given(shape, rng, dtype)], rng, _MOST)
    lines.set("h", "x0")
    skips: list[str] = []
    for k in range(rng.choice((1, 2, 2, 3, 4))):
        _convolution(lines, rank, dtype)
        for _ in range(rng.choice((0, 1, 1, 2))):
            lines.set("h", rng.choice(BETWEEN).format(r=rank))
        _skip(lines, skips)
        if rng.random() < 0.6:
            skips.append(f"s{k}")
            lines.set(skips[-1], rng.choice(("h * 1", "F.relu(h)", "h.sin()")))
    return lines.program("h", *(s for s in skips if rng.random() < 0.3))


def _convolution(lines: Lines, rank: int, dtype: torch.dtype) -> None:
    """h = a convolution of `h`, smaller, so that float16 does not overflow."""
    if lines.refused:
        return
    rng, channels = lines.rng, lines.values["h"].shape[1]
    transposed = rng.random() < 0.35
    window, how = rng.choice(TRANSPOSED if transposed else MOVES)
    results, groups = rng.choice(_CHANNELS), 1
    if "{g}" in how:
        groups = rng.choice([g for g in (2, 4, channels) if channels % g == 0] or [1])
        results = groups * rng.choice((1, 4, 8))
    pair = (channels, results // groups) if transposed else (results, channels // groups)
    weight = lines.given(_given((*pair, *(window,) * rank), rng, dtype))
    bias = lines.given(_given((results,), rng, dtype)) if rng.random() < 0.6 else None
    name = f"F.conv_transpose{rank}d" if transposed else f"F.conv{rank}d"
    lines.set("h", f"{name}(h, {weight}, {bias}, {how.format(g=groups)}) * 0.1")


def _skip(lines: Lines, skips: list[str]) -> None:
    """h = `h` with one of `skips`, cut to its size, if there is one that is as large."""
    if lines.refused or not skips or lines.rng.random() < 0.3:
        return
    name = lines.rng.choice(skips)
    sides = lines.values["h"].shape[2:]
    if any(have < need for have, need in zip(lines.values[name].shape[2:], sides)):
        return
    lines.set("s", f"{name}[:, :, {', '.join(f':{n}' for n in sides)}]")
    if lines.values["s"].shape[0] == lines.values["h"].shape[0]:
        alike = lines.values["s"].shape == lines.values["h"].shape
        lines.set("h", lines.rng.choice(SUMS + SKIPS if alike else SKIPS))


def _given(shape: tuple[int, ...], rng: Random, dtype: torch.dtype) -> Input:
    layout = rng.choice(("plain",) * 8 + ("permuted", "gaps"))
    return Input(shape, dtype, layout, "normal", rng.randrange(4))
