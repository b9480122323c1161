"""Rows of a few elements are turned, a block at a time (pointwise_reduce/cpu/tiles.py)."""

from __future__ import annotations

import warnings

import pytest
import torch
import torch.nn.functional as F

import torchweld
from cpp_runner import error, layouts, reference, run
from pairs import pairs
from torchweld.core import dtypes as d
from torchweld.core.events import TorchweldWarning
from torchweld.ir.parser import parse_comp
from torchweld.templates.pointwise_reduce.cpu.generate import generate

CENTRED = """
comp centred [i:{rows}, j:{extent}] {{
  %0 = load x[i, j] : {dtype}
  %1 = reduce.sum[j] %0 : {dtype}
  %2 = sub %0 %1 : {dtype}
  store y[i, j] %2
  store z[i] %1
}}
"""
KINDS = {d.f32: torch.float32, d.f64: torch.float64, d.i64: torch.int64, d.i32: torch.int32}
LENGTHS = [2, 3, 5, 7, 8, 9, 13, 15, 16, 17, 24, 31, 32]


def centred(rows: int, extent: int, dtype=d.f32):
    comp = parse_comp(CENTRED.format(rows=rows, extent=extent, dtype=dtype))
    x = (8 * torch.randn(rows, extent, generator=torch.Generator().manual_seed(extent))).round()
    outputs = {"y": ((rows, extent), dtype), "z": ((rows,), dtype)}
    return comp, {"x": x.to(KINDS[dtype])}, outputs


@pytest.mark.parametrize(("rows", "extent", "dtype"), pairs((17, 70, 1000), LENGTHS, KINDS))
def test_rows_keep_apart(rows, extent, dtype):
    """Whole numbers: each result is exact."""
    case = centred(rows, extent, dtype)
    found, exact = run(*case), reference(*case)
    assert all(torch.equal(found[n].double(), exact[n].double()) for n in "yz")


@pytest.mark.parametrize("extent", [3, 5, 7, 9, 13])
def test_blocks_are_turned(extent):
    case = centred(4000, extent)
    part = generate(case[0], layouts(*case)).sources[0].text.split("static void part")[1]
    assert part.count("tw_turn_rows<") == part.count("tw_turn_back<") == 1


FUNCTIONS = {
    "softmax": lambda x: x.softmax(-1),
    "layer norm": lambda x: F.layer_norm(x, x.shape[-1:]),
    "variance": lambda x: x.var(-1),
    "largest and where": lambda x: x.max(-1),
    "of a part": lambda x: x[3:, :].log_softmax(-1) * x[3:, :],
    "two reductions": lambda x: F.normalize(x, dim=-1) + x.amax(-1, True),
    "running sum": lambda x: x.cumsum(-1) / x.abs().sum(-1, keepdim=True),
}


IN_16_BITS = {
    "softmax": torch.bfloat16, "layer norm": torch.float16, "of a part": torch.bfloat16,
    "running sum": torch.float16,
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "dtype"), [*((n, torch.float32) for n in FUNCTIONS), *IN_16_BITS.items()], ids=str
)
def test_functions_of_short_rows(name, dtype):
    function = FUNCTIONS[name]
    torch.compiler.reset()
    fused = torchweld.fuse(lambda x: function(x))
    for extent in (2, 7, 15, 24):
        x = torch.randn(203, extent, generator=torch.Generator().manual_seed(extent)).to(dtype)
        x[5, 1], x[9, 0] = torch.nan, torch.inf
        ways = fused(x), function(x), function(x.double())
        for got, eager, right in zip(*((t,) if torch.is_tensor(t) else t for t in ways)):
            finite = right.isfinite()
            assert torch.equal(got.isfinite(), finite) and torch.equal(got.isnan(), right.isnan())
            got, eager, right = (t.double()[finite] for t in (got, eager, right))
            least = torch.finfo(dtype).eps * right.abs().max()
            assert (got - right).abs().max() <= 3 * max((eager - right).abs().max(), least)


def test_gradients_of_short_rows():
    torch.compiler.reset()
    fused = torchweld.fuse(lambda x, w: (x.softmax(-1) * w).sum())
    x, w = (torch.randn(501, 7).requires_grad_() for _ in range(2))
    found = torch.autograd.grad(fused(x, w), (x, w))
    wide = [t.detach().double().requires_grad_() for t in (x, w)]
    exact = torch.autograd.grad((wide[0].softmax(-1) * wide[1]).sum(), wide)
    assert all(error(a, b) <= 1e-6 for a, b in zip(found, exact))


def test_values_that_are_the_same_for_all_rows():
    """Kept from one pass over the columns to the next, they have one place, not one for a row."""
    torch.compiler.reset()

    def call(x):
        return x.softmax(-1).diff(dim=-1).sum() * 2

    x = torch.randn(1, 7, 3, generator=torch.Generator().manual_seed(0)).requires_grad_()
    with warnings.catch_warnings():
        warnings.simplefilter("error", TorchweldWarning)
        (found,) = torch.autograd.grad(torchweld.fuse(call)(x), x)
    wide = x.detach().double().requires_grad_()
    (exact,) = torch.autograd.grad(call(wide), wide)
    assert (found - exact).abs().max() <= 1e-6
