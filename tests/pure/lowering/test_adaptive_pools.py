"""Adaptive pooling with windows of several sizes, forward and backward, on a GPU."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from lowered import check, externs, lowered

from torchweld.capture import lower as lowering
from torchweld.capture.lowering import call
from torchweld.capture.lowering.call import spec_of

aten = torch.ops.aten
SIZES = [((9, 7), (2, 3)), ((9, 7), (4, 7)), ((5, 3), (7, 4)), ((93, 31), (6, 2)), ((1, 8), (3, 5)),
         ((6, 4), (3, 3)), ((40, 2), (1, 3))]  # fmt: skip
CUBES = [((5, 4, 7), (2, 3, 3)), ((5, 4, 2), (1, 3, 3))]


@pytest.fixture(autouse=True)
def on_a_gpu(monkeypatch):
    torch.manual_seed(0)
    for module in (call, lowering):
        monkeypatch.setattr(module, "spec_of", lambda *a: replace(spec_of(*a), device="cuda:0"))


def image(size, last=False, outer=(2, 3)):
    return torch.randn(2, *size, 3).movedim(-1, 1) if last else torch.randn(*outer, *size)


@pytest.mark.parametrize(("size", "out"), SIZES + CUBES)
@pytest.mark.parametrize("last", [False, True])
def test_averages_and_their_gradients(size, out, last):
    x, rank = image(size, last), len(size)
    forward = {2: aten._adaptive_avg_pool2d, 3: aten._adaptive_avg_pool3d}[rank]
    backward = {2: aten._adaptive_avg_pool2d_backward, 3: aten._adaptive_avg_pool3d_backward}[rank]
    assert not externs(check(lambda x: forward(x, out), x))
    gradient = image(out, last)
    assert not externs(check(lambda g, x: backward(g, x), gradient, x))


@pytest.mark.parametrize(("size", "out"), SIZES + CUBES)
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("alike", [False, True])
def test_maxima_and_their_gradients(size, out, last, alike):
    """`alike`: many elements of a window are its maximum."""
    x, rank = image(size, last), len(size)
    x = x.round() if alike else x
    forward = {2: aten.adaptive_max_pool2d, 3: aten.adaptive_max_pool3d}[rank]
    backward = {2: aten.adaptive_max_pool2d_backward, 3: aten.adaptive_max_pool3d_backward}[rank]
    assert not externs(check(lambda x: forward(x, out), x))
    assert not externs(check(lambda x: forward(x, out)[0], x))
    gradient, (_, places) = image(out, last), forward(x, out)
    assert not externs(check(lambda g, x, i: backward(g, x, i), gradient, x, places))


@pytest.mark.parametrize("outer", [(3,), (2, 3)])
def test_images_alone(outer):
    x = image((9, 7), outer=outer)
    for function in (aten._adaptive_avg_pool2d, aten.adaptive_max_pool2d):
        check(lambda x, f=function: f(x, (4, 3)), x)
    check(lambda g, x: aten._adaptive_avg_pool2d_backward(g, x), image((4, 3), outer=outer), x)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_sums_are_wide(dtype):
    x = image((40, 31)).to(dtype)
    assert not externs(check(lambda x: aten._adaptive_avg_pool2d(x, (3, 2)), x))


def test_what_is_not_finite_stays_in_its_windows():
    x = image((9, 7))
    x[0, 0, 1, 1], x[1, 1, 8, 6] = torch.nan, torch.inf
    check(lambda x: aten._adaptive_avg_pool2d(x, (2, 3)), x)
    x[0, 1] = -torch.inf
    check(lambda x: aten.adaptive_max_pool2d(x, (2, 3)), x)


def test_a_cpu_keeps_its_calls(monkeypatch):
    monkeypatch.undo()
    result = lowered(lambda x: aten._adaptive_avg_pool2d(x, (5, 5)), image((9, 7)))
    assert len(externs(result)) == 1
