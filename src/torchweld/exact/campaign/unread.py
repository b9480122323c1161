"""Programs that end with some rows of a chain of layers: what makes the others need not run
(capture/unread.py)."""

from __future__ import annotations

from random import Random

import torch

from torchweld.exact.campaign.lines import Lines
from torchweld.exact.programs import Input, Program

_BATCHES, _ROWS, _WIDTHS = (1, 2, 3), (1, 2, 3, 5, 8, 17), (2, 4, 6, 8, 12, 16)
_DTYPES = (torch.float32,) * 5 + (torch.bfloat16, torch.float16)

# `h`: [batch, rows, features]. {w}, {b}: a weight and a bias; {v}: a row, {m}: [rows, rows].
LAYERS = (
    "F.linear(h, {w}, {b})", "F.linear(h, {w})", "h @ {w}.T", "h @ {w}.T + {b}",
    "h + F.gelu(F.linear(h, {w})) @ {w}", "h + F.silu(F.linear(h, {w}, {b})) @ {w}",
    "F.layer_norm(h, h.shape[-1:], {v})", "F.rms_norm(h, h.shape[-1:])", "h.softmax(-1)",
    "h - h.mean(-1, keepdim=True)", "h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1)",
    "h + F.scaled_dot_product_attention(h, h, h)", "h + (h @ h.mT * 0.1).softmax(-1) @ h",
    "F.scaled_dot_product_attention(h, h, h, is_causal=True)", "h * {v} + h[:, :1]",
    "F.scaled_dot_product_attention(h, h * 0.5, h, attn_mask={m})", "h + ({m} @ h)",
    "(h @ h.mT * 0.1 + {m}).softmax(-1) @ h", "h.transpose(1, 2).contiguous().transpose(1, 2)",
    "h.reshape(len(h), h.shape[1], 2, -1).transpose(1, 2).sin().transpose(1, 2).flatten(2)",
    "torch.cat([h.chunk(2, -1)[1], -h.chunk(2, -1)[0]], -1)", "h[..., ::2].repeat(1, 1, 2)",
    "F.gelu(h.chunk(2, -1)[0]) * h.chunk(2, -1)[1]", "torch.where(h > 0, h, h * 0.1)",
    "h.unsqueeze(1).expand(-1, 2, -1, -1).sum(1)", "h + h.sum(-2, keepdim=True)", "h.cumsum(1)",
    "F.normalize(h, dim=-1)", "h.permute(1, 0, 2).tanh().permute(1, 0, 2)", "h.flip(1)",
    "F.linear(h.flatten(0, 1), {w}).unflatten(0, h.shape[:2])", "h.view(h.shape) * 2",
    "F.linear(h.unsqueeze(2), {w}).squeeze(2)", "F.dropout(h, 0.5, False)", "h.float().to(h.dtype)",
    "h.unflatten(-1, (2, -1)).mean(-2)", "torch.stack(h.unbind(0))", "h + F.linear(h, {w}).amax()",
)  # fmt: skip
READS = (
    "h[:, 0]", "h[:, -1]", "h[:, -1:]", "h[:, :1]", "h[:, :-1]", "h[:, 1:]", "h[0, -1]", "h[:, 1]",
    "h[-1]", "h[:1]", "h[:, -2:-1]", "h[..., :-1, :]", "h[:, :2, :]", "h[:, 0, None]", "h[:, 5:]",
    "h[:, :1, :2]", "h[..., 0, :]", "h[-1:, -1]", "h[:, -1].unsqueeze(1)", "h[:, :0]",
)  # fmt: skip
AFTER = (
    "p", "p * 1", "F.linear(p, {w}, {b})", "p.softmax(-1)", "p.sum()", "p.contiguous() + 1", "p.mT",
    "p.reshape(-1)", "F.gelu(p)", "p + p.mean()", "p.float().log_softmax(-1)", "p.clone().mul_(2)",
)  # fmt: skip


def program(seed: int) -> Program | None:
    """The program of `seed`; None where torch refuses it."""
    rng = Random(seed)
    shape, dtype = tuple(map(rng.choice, (_BATCHES, _ROWS, _WIDTHS))), rng.choice(_DTYPES)
    lines = Lines([_given(rng, shape, dtype)], rng)
    lines.set("h", "x0")
    kept = []
    for k in range(rng.choice((1, 2, 3, 4))):
        _add(lines, "h", rng.choice(LAYERS))
        if rng.random() < 0.1:
            kept.append(f"u{k}")
            lines.set(kept[-1], rng.choice(("h * 1", "h[:, :1] * 1", "h[:, -1]")))
    lines.set("p", rng.choice(READS))
    _add(lines, "y", rng.choice(AFTER))
    return lines.program("y", *kept)


def _add(lines: Lines, name: str, expression: str) -> None:
    """name = expression, with weights that fit what is read."""
    if not lines.refused:
        read = lines.values["p" if name == "y" else "h"]
        depth, results = read.shape[-1:].numel(), lines.rng.choice(_WIDTHS)
        rows = tuple(read.shape[-2:-1])
        shapes = {"w": (results, depth), "b": (results,), "v": (depth,), "m": rows * 2}
        asked = [n for n in shapes if f"{{{n}}}" in expression]
        given = {n: lines.given(_given(lines.rng, shapes[n], read.dtype)) for n in asked}
        expression = expression.format(**given)
    lines.set(name, expression)


def _given(rng: Random, shape: tuple[int, ...], dtype: torch.dtype) -> Input:
    layout = rng.choice(("plain",) * 6 + ("permuted", "gaps"))
    return Input(shape, dtype, layout, "normal", rng.randrange(4))
