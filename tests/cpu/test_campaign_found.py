"""Programs that the campaign found wrong, made small: each was wrong before its cause was
mended."""

from __future__ import annotations

import pytest
import torch

from torchweld.core.events import events
from torchweld.exact.campaign import checks
from torchweld.exact.programs import Input, Program

F32, BF16, F16, I64 = torch.float32, torch.bfloat16, torch.float16, torch.int64

KEYS_LEFT, QUERIES_LEFT = (Input((2, 1, *n), torch.bool) for n in ((1, 3), (31, 1)))


def program(inputs, *lines: str, chunks: bool = False) -> Program:
    """What the last line assigns to is returned. `inputs`: shapes in float32, or Inputs."""
    given = tuple(i if isinstance(i, Input) else Input(i, F32) for i in inputs)
    return Program(given, lines, (lines[-1].split(" ")[0],), small_chunks=chunks)


def logits(*lines: str, dtype=F32, rows=33, classes=64, depth=2) -> Program:
    """x0: rows, x1: weights, x2: a bias, x3: labels."""
    shapes = (rows, depth), (classes, depth), (classes,)
    inputs = *(Input(s, dtype) for s in shapes), Input((rows,), I64)
    return program(inputs, *lines, chunks=True)


FOUND = {
    "a pick of a scalar, traced": program([()], "y = x0.gather(0, torch.tensor(0)) * 2"),
    "windows of a scalar, traced": program([()], "y = x0.unfold(0, 1, 1) * 2"),
    "a turned matrix, one column of it filled": program(
        [Input((33, 3), F32, "permuted")], "y = x0.index_fill(-1, torch.tensor([0]), 3.0)",
    ),
    "a part written into nothing": program(
        [(7, 0)], "v = torch.slice_scatter(x0, x0[1:] * 3, 0, 1)", "y = v.sum(-1).sin()",
    ),
    "a sum of comparisons over all dimensions": program(
        [(5, 5)], "y = x0.var(None) + (x0.argmax(-1)[:, None] == torch.arange(5)).sum(None)",
    ),
    "a loss of some rows of logits, for which nothing is large": logits(
        "l = F.linear(x0, x1)", "m = l[1:]", "y = m.softmax(-1).square().sum().sin()", classes=127,
    ),
    "a sum by index in a scalar": program([(), ()], "y = x0.index_add(0, torch.tensor([0]), x1)"),
    "a product of attention by hand, inside another": program(
        [(3, 2, 101, 4), (3, 2, 7, 4), (3, 2, 7, 2)],
        "i = torch.arange(101)[:, None]", "j = torch.arange(7)", "s = (x0 + 1) @ (x1 * 0.1).mT",
        "w = F.silu(s + (j - i) * 0.1) * 0.5", "y = w @ x2", "z = y.mT @ y",
    ),
    "a gradient that is a product with a scalar": program(
        [(3,), (2, 3), (2,)], "y = F.linear(x0, x1[:1], x2[:1]) + F.linear(x0, x1, x2)",
    ),
    "what is kept of each row, beside a buffer with such a name": logits(
        "l = F.linear(x0, x1, x2) + x0.sum()", "y = (l.softmax(-1) @ x1).square().mean()",
        rows=96, classes=128, depth=8,
    ),
    "what is kept of each chunk, beside a buffer with such a name": logits(
        "l = (F.linear(x0, x1, x2) + x0.sum()) / 3", dtype=F16,
    ),
    "scores of a depth of one": logits(
        "l = F.linear(x0, x1).to(torch.float32)",
        "y = F.cross_entropy(l, x3, weight=torch.arange(64, dtype=l.dtype) / 64)",
        dtype=BF16, rows=20, depth=1,
    ),
    "a copy whose columns are gathered, among scores": logits(
        "l = F.linear(x0, x1).to(torch.float32)",
        "y = ((1 - (-F.cross_entropy(l, x3, reduction='none')).exp()) ** 2).mean()",
        dtype=BF16, rows=64, classes=65,
    ),
    "one of two results of an operation on logits": logits(
        "l = F.linear(x0, x1).to(torch.float32)",
        "y = F.binary_cross_entropy_with_logits(l, F.one_hot(x3, 64).to(l.dtype))", dtype=F16,
        depth=3,
    ),
    "squares of sums of exponentials overflow": program(
        [Input((1, 3, 64, 4), F32, "expanded", "offset", 2), Input((1, 3, 64, 4), F32, seed=3)],
        "s = x0 @ x1.mT", "w = s.exp() / s.exp().sum(-1, keepdim=True)", "y = w @ x0",
    ),
    "weights of a masked row, set to zero": program(
        [(2, 1, 101, 7), (2, 1, 5, 7), Input((101, 5), torch.bool, seed=2)],
        "s = (x0 @ x1.mT).masked_fill(x2, -float('inf'))", "w = s.softmax(-1).masked_fill(x2, 0.0)",
        "y = w @ x1",
    ),
    "a part with a dimension of one, widened to add to": Program(
        (Input((2, 2, 7), F16), Input((2, 2, 7), F16, view="x0[:, :1]")),
        ("v0 = x0.clone()", "x1.index_add_(0, torch.tensor([0]), x1[:1])"), ("v0",), writes=True,
    ),
    "the variance of an empty row": program([(2, 0)], "y = x0.var(-1)"),
    "windows of a scalar": program([(5,)], "y = x0.sin().sum().unfold(0, 1, 1) * 2"),
    "layers of no rows": program(
        [(1, 3), (96, 3), (65, 96)], "h = F.normalize(F.linear(x0[1:], x1), dim=-1)",
        "y = F.linear(h, x2)",
    ),
    "the gradient of keys whose weights a mask sets to zero, of queries that are NaN": program(
        [Input((2, 1, 31, 4), F32, "plain", "hard"), (2, 1, 3, 4), (2, 1, 3, 7), KEYS_LEFT],
        "w = F.silu(x0 @ x1.mT).masked_fill(x3, 0.0)", "y = w @ x2",
    ),
    "values that are NaN, of queries whose weights a mask sets to zero": program(
        [(2, 1, 31, 4), (2, 1, 3, 4), Input((2, 1, 3, 7), F32, "plain", "hard", 1), QUERIES_LEFT],
        "w = (x0 @ x1.mT).softmax(-1).masked_fill(x3, 0.0)", "y = w @ x2",
    ),
    "an element beside what has none": Program(
        (Input((1, 1), F32),), ("v0 = x0.sin()", "v1 = v0.flatten()[1:] * 3"), ("v1", "v0")
    ),
}  # fmt: skip
ANY_SIZES = {
    "a row of which less than nothing is added": program(
        [(3, 31), (130, 16)], "a = F.pad(x0[1:], (0, -15)) @ x1.T",
        "y = a.chunk(2, -1)[0] * a.chunk(2, -1)[-1].sigmoid()",
    ),
    "a product of a matrix read backwards": program(
        [Input((4, 8), BF16, "gaps"), Input((64, 8), BF16)],
        "y = F.linear(x0.flip(-1), x1, x1[:, 0])",
    ),
    "a product of few rows of float32, on a GPU": program(
        [(27, 24), (32, 24), (32,)], "y = F.linear(x0, x1, x2).relu()"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ANY_SIZES)
def test_any_sizes_stay_right(name):
    for device in ("cpu", "H100"):
        assert checks.dynamic(ANY_SIZES[name], device) == []


SCATTERS = "torch.select_scatter(e, x0[:, 0].exp(), -1, 0)", "torch.slice_scatter(e, x0[1:], 0, 1)"


@pytest.mark.parametrize("scatter", (*SCATTERS, "torch.diagonal_scatter(e, x0.diagonal())"))
def test_parts_of_what_is_expanded_stay_right(scatter, monkeypatch):
    # shape functions before torch 2.13 give the result the strides of what is expanded
    meta, strides = torch._meta_registrations, torch._prims_common.clone_preserve_strides
    monkeypatch.setattr(meta, "_scatter_meta_output", strides, raising=False)
    lines = "e = x0.amax(-1, keepdim=True).expand_as(x0)", f"z = {scatter}", "y = z.sin()"
    before = len(events())
    assert checks.interpreted(Program((Input((3, 3), F32),), lines, ("z", "y"))) == []
    assert len(events()) == before  # not left to eager


KERNELS = {
    "a padded row of 16 bits, beside what is padded and turned": program(
        [Input(shape, F16) for shape in ((7, 1), (130, 1), (130,))],
        "h = (F.linear(x0, x1[:1], x2[:1]) + F.linear(x0, x1, x2)).T", "h = F.pad(h, (0, 123))",
        "y = F.silu(h) * h",
    ),
    "exponentials by hand, of scores that leave little room": program(
        [(1, 2, 33, 8), (1, 2, 65, 8), Input((1, 2, 65, 4), F32, "plain", "offset")],
        "s = x0 @ x1.mT + 76", "w = s.exp() / s.exp().sum(-1, keepdim=True)", "y = w @ x2",
    ),
    "exponentials by hand, of which a mask leaves some": program(
        [(1, 2, 33, 8), (1, 2, 65, 8), Input((1, 2, 65, 4), F32, "plain", "offset")],
        "e = (x0 @ x1.mT + 76).exp().masked_fill(torch.arange(65) > 40, 0.0)",
        "y = (e / e.sum(-1, keepdim=True)) @ x2",
    ),
    "gradients of weights by hand, of which none is large": program(
        [(1, 1, 33, 64), (1, 1, 129, 64), (1, 1, 129, 24)],
        "q = F.rms_norm(x0, x0.shape[-1:])", "s = (q @ x1.mT) * 0.25",
        "w = s.exp() / s.exp().sum(-1, keepdim=True)", "y = w @ x2",
    ),
    "scores of 16 bits that are computed again for their gradient": program(
        [Input((2, 1, 5, 2), BF16, "expanded", "offset")],
        "w = ((x0 * 0.3) @ x0.mT).softmax(-1)", "y = (w / (w.sum(-1, keepdim=True) + 1e-6)) @ x0",
    ),
    "a logsumexp that is rounded, and scores far below": program(
        [Input((2, 3, 5, 6), BF16, "expanded", "offset"), Input((2, 3, 17, 6), BF16),
         Input((2, 3, 5, 17), BF16)],
        "s = torch.where(torch.arange(17) <= x2, x0 @ x1.mT * 0.2, -1e9)",
        "h = torch.arange(1, 4)[:, None, None]", "s = s * h * h",
        "w = (s - s.logsumexp(-1, keepdim=True)).exp()",
        "y = w / (w.sum(-1, keepdim=True) + 1e-6) @ x1",
    ),
    "one kernel for what has no axis in common": program(
        [(1, 1)], "v = x0.softmax(-1).index_select(0, torch.tensor([0, 0]))",
        "y = (v.unsqueeze(0) * v.unsqueeze(1)).sum(0)",
    ),
    "a nest that calls what is not written out in place": program(
        [Input((2, 1, 65, 40), F16), Input((2, 1, 2, 40), F16), Input((2, 1, 2, 7), F16),
         Input((2, 1, 1, 2), torch.bool, "expanded")],
        "w = F.silu((x0 @ x1.mT * 0.25).masked_fill(x3, -1e4)).tril()",
        "y = (w @ x2).relu().square().sum((-1, -2))",
    ),
    "short parts in front of an axis of two": program([(9, 2)], "y = torch.cat([x0, x0 * 2, x0])"),
    "entries that fill bags up, without gradients": program(
        [(5, 4)], "y = F.embedding_bag(torch.tensor([[1, 0], [2, 0]]), x0, padding_idx=0) * 2",
    ),
    "a gradient of one of two weights of a row": program(
        [(2, 3, 64, 1), (2, 3, 64, 1)],
        "w = torch.cat([x0, x1[..., :1].expand(2, 3, 64, 1)], -1).softmax(-1)[..., :-1]",
    ),
    "a logsumexp of scores far below": program(
        [(2, 3, 5, 6), (2, 3, 17, 6), (2, 3, 5, 17)],
        "s = torch.where(torch.arange(17) <= x2, x0 @ x1.mT * 0.2, -1e9)",
        "w = (s - s.logsumexp(-1, keepdim=True)).exp()",
        "y = w / (w.sum(-1, keepdim=True) + 1e-6) @ x1",
    ),
    "scores of 500 of queries that the whole batch shares": program(
        [Input((2, 1, 31, 3), F16, "expanded", "offset"), Input((2, 1, 16, 3), F16),
         Input((2, 1, 16, 7), F16)],
        "s = x0 @ x1.mT + (x0 * 0.5).flip(-1) @ x1.mT", "w = s.softmax(-1).nan_to_num(0.0)",
        "y = w @ x2",
    ),
    "differences of weights of 16 bits": program(
        [Input((3, 2, 7, 3), F16), Input((3, 2, 65, 3), F16, "plain", "offset", 2)],
        "s = x0 @ x1.mT / 3 ** 0.5", "w = s.softmax(-1) - 0.3 * (x0.flip(-1) @ x1.mT).softmax(-1)",
        "y = (w @ x1).sin() * 2",
    ),
}  # fmt: skip
KERNELS["scores of 100, which the forward has in memory in 16 bits, in the backward"] = program(
    [Input((2, 2, 101, 2), F16, values="offset"), *[Input((2, 2, 101, 2), F16)] * 2],
    "s = x0 @ x1.mT / 1.5", "s = (s * 0.5).to(torch.float32)", "t = s.log_softmax(-1).exp()",
    "y = (t + t.flip(1)).to(x2.dtype) @ x2",
)  # fmt: skip
KERNELS |= {
    name: FOUND[name] for name in (
        "the gradient of keys whose weights a mask sets to zero, of queries that are NaN",
        "values that are NaN, of queries whose weights a mask sets to zero",
        "weights of a masked row, set to zero", "the variance of an empty row",
        "an element beside what has none",
    )
}  # fmt: skip


@pytest.mark.parametrize("name", KERNELS)
def test_kernels_are_right_too(name):
    assert checks.compiled(KERNELS[name]) == []


@pytest.mark.parametrize("name", FOUND)
def test_what_was_found_stays_right(name):
    assert checks.interpreted(FOUND[name]) == []
