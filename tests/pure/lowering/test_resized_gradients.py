"""Gradients of images that are made larger, as gathers: on a GPU, of every mode, by whole
factors."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from lowered import check, comps, externs, lowered

from torchweld.capture import lower as lowering
from torchweld.capture.lowering import call
from torchweld.capture.lowering.call import spec_of

aten = torch.ops.aten
MODES = {  # call, dimensions, whether it is told of corners
    "nearest": (aten.upsample_nearest2d_backward, 2, False),
    "exact": (aten._upsample_nearest_exact1d_backward, 1, False),
    "linear": (aten.upsample_linear1d_backward, 1, True),
    "bilinear": (aten.upsample_bilinear2d_backward, 2, True),
    "bicubic": (aten.upsample_bicubic2d_backward, 2, True),
    "trilinear": (aten.upsample_trilinear3d_backward, 3, True),
}
SIZES = (5, 7, 3)
WHOLE = [("nearest", (2, 3)), ("exact", (3,)), ("exact", (13,)), ("linear", (4,)),
         ("bilinear", (2, 2)), ("bilinear", (3, 1)), ("bicubic", (2, 2)),
         ("trilinear", (2, 1, 3))]  # fmt: skip


@pytest.fixture(autouse=True)
def on_a_gpu(monkeypatch):
    torch.manual_seed(0)
    for module in (call, lowering):
        monkeypatch.setattr(module, "spec_of", lambda *a: replace(spec_of(*a), device="cuda:0"))


def gradient_of(mode: str, made, sizes, aligned: bool = False, scales=None):
    backward, dims, told = MODES[mode]
    how = (aligned,) if told else ()
    scales = [None] * dims if scales is None else scales
    return lambda g: backward(g, list(made), [2, 3, *sizes[:dims]], *how, *scales)


@pytest.mark.parametrize(("mode", "factors"), WHOLE)
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("given", [False, True])
def test_each_position_gathers(mode, factors, last, given):
    made = [n * f for n, f in zip(SIZES, factors)]
    g = torch.randn(2, *made, 3).movedim(-1, 1) if last else torch.randn(2, 3, *made)
    function = gradient_of(mode, made, SIZES, scales=map(float, factors) if given else None)
    assert not any(s.combine for c in comps(check(function, g)) for s in c.stores)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_sums_are_wide(dtype):
    """ATen adds in 16 bits, one after the other; between two kernels the sums are in float32."""
    for mode in ("bilinear", "bicubic"):
        g = torch.randn(2, 3, 10, 14).to(dtype)
        check(gradient_of(mode, g.shape[2:], SIZES), g)


@pytest.mark.parametrize("sizes", [(1, 1), (1, 6), (2, 2)])
@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_small_images(mode, sizes):
    g = torch.randn(2, 3, 2 * sizes[0], 2 * sizes[1])
    check(gradient_of(mode, g.shape[2:], sizes), g)


OTHERS = [
    ("bilinear", (11, 14), False, None), ("bilinear", (10, 14), True, None),
    ("bilinear", (10, 14), False, (2.0, 2.1)), ("linear", (5 * 24,), False, None),
    ("bilinear", (3, 4), False, None), ("bilinear", (1, 1), True, None),
    ("bilinear", (93, 95), False, None), ("bicubic", (11, 9), False, None),
    ("bicubic", (33, 22), True, None), ("bicubic", (3, 5), False, None),
    ("trilinear", (6, 9, 31), False, None), ("trilinear", (6, 9, 31), True, None),
]  # fmt: skip


@pytest.mark.parametrize(("mode", "made", "aligned", "scales"), OTHERS)
@pytest.mark.parametrize("last", [False, True])
def test_other_sizes_are_gathered_by_computed_weights(mode, made, aligned, scales, last):
    g = torch.randn(2, *made, 3).movedim(-1, 1) if last else torch.randn(2, 3, *made)
    result = check(gradient_of(mode, made, SIZES, aligned, scales), g)
    assert not externs(result)


@pytest.mark.parametrize("size", [1, 2, 3, 6, 23])
@pytest.mark.parametrize(("mode", "aligned"), [("bilinear", False), ("bilinear", True),
                                               ("bicubic", False), ("bicubic", True)])  # fmt: skip
def test_images_of_few_positions(mode, size, aligned):
    g = torch.randn(2, 3, 24, 37)
    assert not externs(check(gradient_of(mode, (24, 37), (size, size), aligned), g))


def test_what_has_no_share_is_not_read():
    """Beside a band are infinities, which a weight of zero would make NaN."""
    g = torch.full((2, 3, 40, 40), float("inf"))
    g[:, :, 12:30, 12:30] = 1.0
    check(gradient_of("bilinear", (40, 40), (17, 17)), g)


def test_the_nearest_stays_with_aten():
    result = lowered(gradient_of("nearest", (3, 7), SIZES), torch.randn(2, 3, 3, 7))
    assert len(externs(result)) == 1 and not comps(result)
