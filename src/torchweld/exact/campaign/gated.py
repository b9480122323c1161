"""Programs of one product whose results are taken apart, used apart and put together: gates, heads,
concatenations, in 16 bits most often, with rows that end at a line, at 16 bytes, or at neither. A
kernel that has all parts at hand may write one where another lies."""

from __future__ import annotations

from random import Random

import torch

from torchweld.exact.campaign.lines import Lines
from torchweld.exact.programs import Input, Program

_WIDTHS = (4, 8, 12, 20, 24, 36, 40, 60, 64, 66, 72, 100, 132, 136, 192)
_ROWS = (1, 5, 16, 33, 100, 129, 260)
_DEPTHS = (8, 16, 20, 24, 33, 64, 72, 136)
_DTYPES = (torch.bfloat16,) * 4 + (torch.float16,) * 2 + (torch.float32,) * 2

# `u`: results of a product. Its parts, `a` and `b`.
APART = (
    *[("u.chunk(2, -1)[0]", "u.chunk(2, -1)[1]")] * 3, ("u.chunk(2, -1)[1]", "u.chunk(2, -1)[0]"),
    ("u[..., ::2]", "u[..., 1::2]"), ("u[..., 1::2]", "u[..., ::2]"),
    ("u.unflatten(-1, (2, -1)).unbind(-2)[0]", "u.unflatten(-1, (2, -1)).unbind(-2)[1]"),
    ("u.unflatten(-1, (-1, 2))[..., 0]", "u.unflatten(-1, (-1, 2))[..., 1]"),
    ("u[..., :-4]", "u[..., 4:]"), ("u", "u.flip(-1)"), ("u", "u * 2"),
)  # fmt: skip
# `a`, `b`: parts.
TOGETHER = (
    "F.silu(a) * b", "F.gelu(a) * b", "a.sigmoid() * b", "F.relu(a).square() * b",
    "F.gelu(a, approximate='tanh') * (b + 1)", "a * b.tanh() + a", "(a - b).abs()",
    "torch.cat([F.silu(a), b * 2], -1)", "torch.cat([b, a], -1)",
    "torch.stack([a, b], -1).flatten(-2)",
    "torch.cat([a.tanh() * b[..., :1], a], -1)", "torch.cat([-b, a], -1)", "a * b.softmax(-1)",
    "F.layer_norm(a, a.shape[-1:]) * b", "torch.where(a > b, a, b)", "a + b.mean(0)",
    "torch.cat([a * b, a + b, a - b], -1)", "F.pad(a * b, (0, 4))", "F.pad(F.silu(a), (4, 0))",
)  # fmt: skip
PRODUCTS = (
    "F.linear({h}, {w}, {b})", "F.linear({h}, {w}, {b})", "F.linear({h}, {w})", "{h} @ {w}.T + {b}",
    "torch.cat([F.linear({h}, {w}, {b}), F.linear({h}, {w} * 2)], -1)",
    "torch.addmm({b}, {h}, {w}.T)",
)  # fmt: skip


def program(seed: int) -> Program | None:
    """The program of `seed`; None where torch refuses it."""
    rng = Random(seed)
    dtype = rng.choice(_DTYPES)
    lines = Lines([_given((rng.choice(_ROWS), rng.choice(_DEPTHS)), rng, dtype)], rng)
    kept, name = [], "x0"
    for k in range(rng.choice((1, 2, 2, 3))):
        _product(lines, name, dtype)
        for part, expression in zip("ab", rng.choice(APART)):
            lines.set(part, expression)
        name = f"h{k}"
        lines.set(name, f"({rng.choice(TOGETHER)}) * 0.1")  # float16 is not to overflow
        if rng.random() < 0.3:
            kept.append(f"r{k}")
            lines.set(kept[-1], rng.choice(("a * 1", "u * 2", "b.sum(0)", "u.float().sum(0)")))
    return lines.program(name, *kept)


def _product(lines: Lines, name: str, dtype: torch.dtype) -> None:
    """u = a product of what has this name, by a weight and maybe a bias."""
    if lines.refused:
        return
    rng, depth = lines.rng, lines.values[name].shape[-1]
    columns = 2 * rng.choice(_WIDTHS)
    names = {"h": name, "w": lines.given(_given((columns, depth), rng, dtype))}
    expression = rng.choice(PRODUCTS)
    if "{b}" in expression:
        names["b"] = lines.given(_given((columns,), rng, dtype))
    lines.set("u", expression.format(**names))


def _given(shape: tuple[int, ...], rng: Random, dtype: torch.dtype) -> Input:
    layout = rng.choice(("plain",) * 8 + ("permuted", "gaps"))
    return Input(shape, dtype, layout, "normal", rng.randrange(4))
