"""Programs that write to their inputs, some of which share memory: what is computed, and what the
inputs hold afterwards."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import torch

from torchweld.exact.campaign.lines import Lines
from torchweld.exact.programs import Input, Program

EXTENTS = (1, 2, 3, 4, 5, 7, 33)
_DTYPES = (torch.float32,) * 4 + (torch.bfloat16, torch.float16, torch.int64)
# Inputs in the memory of the first.
SHARED = (
    "x0", "x0.T", "x0[1:]", "x0[:, :1]", "x0[..., ::2]", "x0.view(-1)", "x0[-1]", "x0.t()[1:]",
    "x0.diagonal()", "x0[:, 1:]", "x0.unsqueeze(0)", "x0[::2]",
)  # fmt: skip
# {t}: an input; {o}: another, of the same shape or one that spreads to it.
WRITES = (
    "{t}.add_({o})", "{t}.mul_(2)", "{t}.copy_({o})", "{t}.zero_()", "{t}[0] = {o}[-1]",
    "{t}[..., -1:] = 3", "{t}[1:] = {t}[:-1].clone()", "{t}[::2].mul_(3)",
    "{t}.sub_({t}.sum(0) * 0 + 1)", "{t} += {o} * 2", "{t}.neg_()", "{t}.transpose(0, -1).mul_(2)",
    "{t}.fill_(1.5)", "{t}.masked_fill_({o} > 0, 2)", "{t}.clamp_(-1, 1)",
    "{t}.index_fill_(0, torch.tensor([0]), 2)", "{t}.view(-1)[:2] = 7", "{t}.addcmul_({o}, {o})",
    "{t}.index_add_(0, torch.tensor([0]), {o}[:1])", "{t}[torch.tensor([0, -1])] = 4",
    "{t}.lerp_({o}, 0.5)", "{t}.index_put_((torch.tensor([0]),), {o}[:1], accumulate=True)",
    "{t}.flip(0).add_(1)", "{t}.square_()", "{t}.cumsum_(0)", "{t}.tril_()",
    "{t}.diagonal().add_(1)", "{t}.scatter_(0, torch.zeros_like({t}[:1], dtype=torch.int64), 2)",
    "{t}.detach().add_(1)", "{t}.resize_as_({t}).add_(1)", "{t}.relu_()",
    "{t}.narrow(0, 0, 1).copy_({o}[:1])", "{t}.unsqueeze(0).add_({o})",
    "{t}.swapaxes_(0, 0).add_(1)",
)  # fmt: skip
READS = (
    "x0 * 2", "x0.sum(0)", "x0.sin()", "x0 + x1", "x1 * 3", "x0.clone()", "x0.flatten()[1:]",
    "x0.sum() + x2.sum()", "x0[0]", "x0.T", "x2 - x0", "x0.softmax(-1)", "x1.sum()", "x0",
)  # fmt: skip


def program(seed: int) -> Program | None:
    """The program of `seed`; None where torch refuses it."""
    rng = Random(seed)
    shape = tuple(rng.choice(EXTENTS) for _ in range(rng.choice((1, 2, 2, 2, 3))))
    dtype, layout = rng.choice(_DTYPES), rng.choice(("plain", "plain", "permuted", "gaps"))
    first = Input(shape, dtype, layout, "normal", rng.randrange(4))
    second = replace(first, seed=first.seed + 1)
    if rng.random() < 0.6:
        second = replace(second, view=rng.choice(SHARED))
    third = Input(rng.choice((shape, shape[-1:])), dtype, "plain", "normal", 7)
    try:
        lines = Lines((first, second, third), rng)
    except Exception:  # no such view
        return None
    names: list[str] = []
    for k in range(rng.choice((2, 3, 4, 5))):
        if rng.random() < 0.6:
            target, other = rng.choice(("x0", "x0", "x1", "x2")), rng.choice(("x0", "x1", "x2"))
            lines.add(rng.choice(WRITES).format(t=target, o=other))
        else:
            names.append(f"v{k}")
            lines.set(names[-1], rng.choice(READS))
    found = lines.program(*names, "x0") if any("v" not in l[:1] for l in lines.lines) else None
    return found and replace(found, writes=True)
