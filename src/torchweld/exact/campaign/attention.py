"""Programs of attention by hand: scores, masks, weights and values in the forms that people write,
over extents at which two axes look alike and beyond the tiles of kernels.

    scores of q and k -> up to three changes -> weights -> a change -> product with v -> an end
"""

from __future__ import annotations

from random import Random

import torch

from torchweld.exact.campaign.lines import Lines
from torchweld.exact.programs import Input, Program

DTYPES = (torch.float32,) * 3 + (torch.bfloat16, torch.float16)
POSITIONS = (1, 2, 3, 5, 7, 16, 17, 31, 33, 64, 65, 101, 129)
DEPTHS = (1, 2, 3, 4, 7, 8, 16, 17, 24, 40, 64, 65)
_LAYOUTS = ("plain",) * 4 + ("permuted", "gaps", "expanded")
_VALUES = ("normal",) * 6 + ("offset", "hard")

# q, k, v: [batch, heads, positions, depth]; `i` and `j`: positions of queries and keys.
SCORES = (
    "q @ k.mT", "(q @ k.mT) * 0.25", "(q * 0.3) @ k.transpose(-1, -2)",
    "torch.einsum('bhid,bhjd->bhij', q, k)", "torch.matmul(q, k.mT) / q.shape[-1] ** 0.5",
    "torch.einsum('bihd,bjhd->bhij', q.transpose(1, 2), k.transpose(1, 2)) * 0.2",
    "q @ k.mT + (q * 0.5).flip(-1) @ k.mT", "(q + 1) @ (k * 0.1).mT", "k @ q.mT * 0.1",
)  # fmt: skip
# `s`: the scores.
CHANGES = (
    "s * 0.5", "s.masked_fill(j > i, -float('inf'))", "torch.where(j <= i, s, -1e9)",
    "20 * torch.tanh(s / 20)", "s + (j - i) * 0.1", "s.to(torch.float32)", "s.clamp(-3, 3)",
    "s.masked_fill(i - j > 3, -float('inf'))", "s + x3", "s + x3.tril()", "s.masked_fill(x4, -1e4)",
    "s.masked_fill(x4[:1], -float('inf'))", "s - s.amax(-1, keepdim=True)", "s.masked_fill("
    "i % 3 != j % 3, -float('inf'))", "s - s.mean(-1, keepdim=True)", "F.relu(s)", "s + x3.mean()",
    "s * torch.arange(1, s.shape[1] + 1)[:, None, None]", "s + torch.where(x4, 0.0, -1e9)",
    "s.masked_fill((j > i) & (i - j < 5), float('-inf'))", "s.transpose(-1, -2).contiguous().mT",
    "s.to(torch.bfloat16)", "s / (1 + s.abs())", "s.masked_fill(x4 | (j > i), -float('inf'))",
)  # fmt: skip
WEIGHTS = (
    "s.softmax(-1)", "s.softmax(-1)", "torch.softmax(s, -1, dtype=torch.float32)", "s.softmax(-1)",
    "s.sigmoid()", "F.relu(s)", "(s - s.logsumexp(-1, keepdim=True)).exp()", "s.softmax(-2)",
    "s.log_softmax(-1).exp()", "F.relu(s) ** 2 / s.shape[-1]", "F.silu(s)",
    "(s - s.amax(-1, keepdim=True)).exp() / (1 + (s - s.amax(-1, keepdim=True)).exp().sum(-1, "
    "keepdim=True))", "s.exp() / s.exp().sum(-1, keepdim=True)", "s / s.abs().sum(-1, True)",
    "torch.cat([s, x3[..., :1].expand(*s.shape[:-1], 1)], -1).softmax(-1)[..., :-1]",
    "torch.softmax(s - s.detach().amax(-1, keepdim=True), -1)",
)  # fmt: skip
# `w`: the weights.
AFTERWARDS = (
    "w", "w", "w", "w.nan_to_num(0.0)", "w * x3", "w / (w.sum(-1, keepdim=True) + 1e-6)",
    "w.masked_fill(x4, 0.0)", "w - 0.3 * (q.flip(-1) @ k.mT).softmax(-1)", "w.tril()", "w * 0.5",
    "w.mT", "w + w.flip(1)",
)  # fmt: skip
# `y`: the result.
ENDS = (
    "y", "y", "y.transpose(1, 2).reshape(y.shape[0], y.shape[2], -1)", "y + y.mean()",
    "y.sin() * 2", "y / y.norm(dim=-1, keepdim=True)",
    "y.transpose(1, 2).flatten(2).softmax(-1)", "y.sum(1)", "y * 2 + 1", "y.to(torch.float32)",
    "F.layer_norm(y, y.shape[-1:])", "y.permute(2, 0, 1, 3).contiguous()",
    "y.mT @ y", "y.relu().square().sum((-1, -2))", "y[:, :, -1:]",
)  # fmt: skip
QUERIES = (
    "x0", "x0", "x0 * 1.5", "x0.transpose(0, 1).contiguous().transpose(0, 1)",
    "x0 * x0.cos() + x0.roll(1, -1) * x0.sin()", "F.rms_norm(x0, x0.shape[-1:])",
)  # fmt: skip
KEYS = (
    "x1", "x1", "x1.roll(1, -1) * 0.5 + x1", "x1[:, :1].expand_as(x1)",
    "x1[:, :1].repeat_interleave(x1.shape[1], 1)", "x1.to(torch.float32)",
)  # fmt: skip
RESULTS = (
    "w.to(v.dtype) @ v", "w.to(v.dtype) @ v", "(w @ v.to(w.dtype)).to(v.dtype)",
    "torch.einsum('bhij,bhje->bhie', w.to(v.dtype), v)",
)  # fmt: skip


def program(seed: int) -> Program | None:
    """The program of `seed`; None where torch refuses it."""
    rng = Random(seed)
    lines = Lines(_inputs(rng), rng)
    lines.set("q", rng.choice(QUERIES))
    lines.set("k", rng.choice(KEYS))
    lines.set("v", "x2 if k.dtype == x2.dtype else x2.to(k.dtype)")
    lines.set("q", "q.to(k.dtype)")
    lines.set("i", "torch.arange(q.shape[-2])[:, None]")
    lines.set("j", "torch.arange(k.shape[-2])")
    lines.set("s", rng.choice(SCORES))
    for _ in range(rng.choice((0, 0, 1, 1, 1, 2, 3))):
        lines.set("s", rng.choice(CHANGES))
    lines.set("w", rng.choice(WEIGHTS))
    lines.set("w", rng.choice(AFTERWARDS))
    lines.set("y", rng.choice(RESULTS))
    lines.set("y", rng.choice(ENDS))
    others = [n for n in ("w", "s") if rng.random() < 0.06]
    return lines.program("y", *others)


def _inputs(rng: Random) -> list[Input]:
    """Queries, keys, values, a bias and a mask."""
    batch, heads = rng.choice((1, 2, 3)), rng.choice((1, 2, 3))
    rows, keys = rng.choice(POSITIONS), rng.choice(POSITIONS)
    if rng.random() < 0.4:
        keys = rows
    depth, columns = rng.choice(DEPTHS), rng.choice(DEPTHS)
    dtype = rng.choice(DTYPES)
    shapes = (batch, heads, rows, depth), (batch, heads, keys, depth), (batch, heads, keys, columns)
    bias = (*(rng.choice((n, n, 1)) for n in (batch, heads)), rows, keys)
    mask = rng.choice(((batch, 1, 1, keys), (rows, keys), (batch, heads, rows, keys)))

    def given(shape: tuple[int, ...], dtype: torch.dtype) -> Input:
        layout = rng.choice(_LAYOUTS)
        return Input(shape, dtype, layout, rng.choice(_VALUES), rng.randrange(4))

    return [*(given(s, dtype) for s in shapes), given(bias, dtype), given(mask, torch.bool)]
