"""Programs around operators that read or write a part of a tensor: what fuses by index maps, over
extents where two maps look alike.

    producer before, one operator, consumer after: all drawn by a seed
"""

from __future__ import annotations

from random import Random

import torch

from torchweld.exact.campaign.lines import Lines
from torchweld.exact.programs import Input, Program

EXTENTS = (0, 1, 1, 2, 3, 5, 7)
_MOST_ELEMENTS = 20_000
_RANKS = (1, 2, 2, 2, 3, 3, 4)

# `v` is what comes in, `n` its last dimension, `m` its first. What torch refuses for a shape is no
# program.
PRODUCERS = (
    "{v}", "{v}.sin() * 2", "{v}.softmax(-1)", "{v}.transpose(0, -1) * 1.5",
    "{v}.sum(0, keepdim=True) + {v}", "{v}.cumsum(-1)", "{v}.flip(0).exp()",
    "{v}.amax(-1, keepdim=True).expand_as({v})", "({v} * 3).reshape(-1, {m})", "{v}[..., :1].sin()",
)  # fmt: skip
CONSUMERS = (
    "{v}.exp()", "{v}.sum() * 2", "{v}.sum(-1).sin()", "{v}.softmax(0)", "{v} * {v}.mean()",
    "{v}.transpose(0, -1).contiguous() * 2", "{v}.flatten()[1:] * 3", "{v}.reshape(-1).sin()",
    "{v}.cumsum(0) * {v}", "{v} - {v}.amax(-1, keepdim=True)", "{v}[..., -1:] * {v}",
    "{v}.flip(-1) + 1", "({v}.unsqueeze(0) * {v}.unsqueeze(1)).sum(0)", "{v}.var(-1)",
)  # fmt: skip
MOVERS = (
    "torch.diagonal({v}, {k}, 0, -1)", "torch.diag_embed({v}, {k})", "torch.trace({v})",
    "torch.diag({v}, {k})", "{v}.select(0, 0)", "{v}.select(-1, -1)", "{v}[1:]", "{v}[..., ::2]",
    "{v}[:, :1]", "{v}[..., 1:-1]", "{v}.as_strided((2, 2), (1, 1))", "{v}.narrow(-1, {n} // 2, 1)",
    "torch.diagonal_scatter({v}, {v}.diagonal({k}, 0, -1) * 2, {k}, 0, -1)",
    "torch.select_scatter({v}, {v}.select(0, 0) * 2, 0, -1)",
    "torch.select_scatter({v}, {v}.select(-1, -1).exp(), -1, 0)",
    "torch.slice_scatter({v}, {v}[1:] * 3, 0, 1)",
    "torch.slice_scatter({v}, {v}[..., ::2].exp(), -1, 0, None, 2)",
    "torch.as_strided_scatter({v}, {v}.as_strided((2,), (1,)) * 2, (2,), (1,))",
    "{v}.index_put((torch.tensor([0]),), torch.tensor(2.0, dtype={v}.dtype))",
    "{v}.index_put((torch.tensor([-1, 0]),), {v}[:1].sin(), accumulate=True)",
    "{v}.index_put((torch.arange({m}),), torch.tensor(0.5, dtype={v}.dtype))",
    "{v}.index_put((torch.arange({m}), torch.zeros({m}, dtype=torch.int64)), {v}.sum())",
    "torch.zeros_like({v}).index_put((torch.arange({m} // 2),), {v}.sum())",
    "torch.zeros_like({v}).index_put((torch.arange(0, {m}, 2),), {v}.mean(), accumulate=True)",
    "{v}.scatter(0, torch.zeros_like({v}[:1], dtype=torch.int64), 1.5)",
    "{v}.scatter(-1, torch.zeros_like({v}[..., :1], dtype=torch.int64), {v}.exp())",
    "{v}.scatter_add(0, torch.zeros_like({v}, dtype=torch.int64), {v} * 2)",
    "{v}.scatter_reduce(0, torch.zeros_like({v}, dtype=torch.int64), {v} * 2, 'amax')",
    "{v}.index_add(0, torch.tensor([0, -1]) % {m}, torch.cat([{v}[:1], {v}[:1]]))",
    "{v}.index_copy(0, torch.tensor([{m} - 1]), {v}[:1] * 2)",
    "{v}.index_fill(-1, torch.tensor([0]), 3.0)",
    "{v}.index_select(0, torch.tensor([{m} - 1, 0]))", "{v}.gather(0, {v}[:1].argsort(0))",
    "{v}.gather(-1, {v}.argsort(-1)[..., :2])", "torch.take_along_dim({v}, {v}.argmax(0, True), 0)",
    "{v}.take(torch.tensor([0, {v}.numel() - 1]))", "{v}.masked_fill({v} > 0, 0.5)",
    "{v}[{v}.argmax(0)]", "{v}[torch.zeros(2, dtype=torch.int64), ..., 0]",
    "F.pad({v}, (1, 2))", "F.pad({v}, (-1, 0))", "F.pad({v}, (0, 0, 1, 1), value=2.0)",
    "F.pad({v}, (1, 1), mode='replicate')", "F.pad({v}, (1, 1), mode='reflect')",
    "F.pad({v}, (1, 0), mode='circular')", "{v}.flip(0)", "{v}.flip(0, -1)", "{v}.roll(1, 0)",
    "{v}.roll((1, -1), (0, -1))", "{v}.unfold(0, 1, 1)", "{v}.unfold(-1, 2, 1)",
    "{v}.unfold(-1, 3, 2)", "F.unfold({v}, 2)", "F.unfold({v}, (1, 3), padding=1)",
    "F.fold({v}, (2, 2), 1)", "F.fold({v}, (3, 3), 2)", "{v}.tril({k})", "{v}.triu({k})",
    "torch.cat([{v}, {v} * 2], -1)", "torch.cat([{v}[:1], {v}, {v}[1:]])",
    "torch.stack([{v}, {v}.sin()], 0)", "torch.stack([{v}.exp(), {v}], -1)",
    "{v}.split(1, 0)[-1]", "torch.cat([a * k for k, a in enumerate({v}.split(2, -1))], -1)",
    "sum(a * k for k, a in enumerate({v}.unbind(0)))", "torch.cat({v}.chunk(3, -1)[::-1], -1)",
    "{v}.tensor_split(2, -1)[0]", "{v}.repeat(*[2] * {v}.dim())", "torch.tile({v}, (3,))",
    "{v}.repeat_interleave(2, -1)", "{v}.repeat_interleave(3, 0)", "torch.rot90({v}, 1, (0, -1))",
    "{v}.unsqueeze(0).expand(3, *{v}.shape)", "{v}.diff(dim=-1)", "{v}.diff(dim=0, n=2)",
    "torch.cummax({v}, 0)[0]", "{v}.sort(-1)[0]", "{v}.topk(min(2, {n}), -1)[0]", "{v}.cumprod(0)",
    "torch.block_diag({v}, {v} * 2)", "torch.kron({v}, {v})", "torch.logcumsumexp({v}, -1)",
    "torch.trapezoid({v}, dim=-1)", "torch.nn.functional.pixel_shuffle({v}, 1)",
    "F.pixel_unshuffle({v}, 1)", "F.channel_shuffle({v}, 1)",
    "F.max_pool1d({v}, 2, ceil_mode=True)",
    "F.avg_pool1d({v}, 2, padding=1)", "F.adaptive_avg_pool1d({v}, 3)",
    "F.interpolate({v}, scale_factor=2)", "torch.atleast_3d({v})", "{v}.swapaxes(0, -1)[0]",
    "torch.outer({v}.flatten(), {v}.flatten())", "torch.tensordot({v}, {v}, {v}.dim())",
    "{v}.view_as({v}).squeeze()", "{v}.unflatten(-1, (1, {n}))", "{v}.unflatten(0, (-1, 1))",
    "torch.where(torch.eye({m}, {n}).bool(), {v}, 0)", "torch.renorm({v}, 2, 0, 1.0)",
    "{v}.clone().fill_diagonal_(2.0)", "{v}.clone().index_fill_(0, torch.tensor([0]), 1.0)",
    "torch.linalg.diagonal({v}).sum(-1)", "{v} * torch.eye({m}, {n})", "torch.vander({v})",
    "torch.cdist({v}, {v})", "torch.nn.functional.one_hot({v}.argmax(-1), {n}).to({v}.dtype) * 2",
)  # fmt: skip
# Lines that write into part of a copy; `y` is the copy.
WRITES = (
    "{y}[0] = {v}[-1] * 2", "{y}[..., -1:] = 0", "{y}[:, 0] += {v}[:, -1]", "{y}[::2] *= 3",
    "{y}.diagonal(0, 0, -1).mul_(2)", "{y}[1:] = {y}[:-1].clone()", "{y}[..., 1:].exp_()",
    "{y}[torch.tensor([0])] = 1.5", "{y}[torch.arange({m}), 0] = 2.0", "{y}[{v} > 0] = 0.0",
)  # fmt: skip


def program(seed: int) -> Program | None:
    """The program of `seed`; None where torch refuses it."""
    rng = Random(seed)
    shape = tuple(rng.choice(EXTENTS) for _ in range(rng.choice(_RANKS)))
    layout = rng.choice(("plain", "plain", "plain", "permuted", "gaps"))
    given = Input(shape, torch.float32, layout, "normal", rng.randrange(4))
    lines = _Lines(given, rng)
    lines.then(rng.choice(PRODUCERS))
    middle = lines.write if rng.random() < 0.15 else lambda: lines.then(rng.choice(MOVERS))
    middle()
    if rng.random() < 0.2:
        lines.then(rng.choice(MOVERS))
    lines.then(rng.choice(CONSUMERS))
    if lines.refused:
        return None
    outputs = [lines.last] + (["v1"] if rng.random() < 0.2 else [])
    return lines.program(*outputs)


class _Lines(Lines):
    """Each line is about the value before."""

    def __init__(self, given: Input, rng: Random) -> None:
        super().__init__((given,), rng, _MOST_ELEMENTS)
        self.last = "x0"

    def then(self, template: str) -> None:
        """v = template of the last value."""
        name = f"v{len(self.lines)}"
        self.add(f"{name} = {self._filled(template)}")
        self.last = name

    def write(self) -> None:
        """y = a copy; a part of y = ..."""
        source = self.last
        self.then("{v}.clone()")
        self.add(self._filled(self.rng.choice(WRITES), source, self.last))
        self.then("{v} * 1")

    def _filled(self, template: str, source: str = "", target: str = "") -> str:
        shape = getattr(self.values.get(source or self.last), "shape", ()) or (1,)
        k = self.rng.choice((-1, 0, 0, 1))
        return template.format(v=source or self.last, y=target, m=shape[0], n=shape[-1], k=k)
