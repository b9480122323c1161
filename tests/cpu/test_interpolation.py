"""Interpolation in training: eager's gradient, in one call (capture/interpolation.py)."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

import torchweld
from torchweld.capture import decompose, interpolation

SIDES = {1: (13,), 2: (9, 14), 3: (5, 6, 7)}
CASES = [
    ({"scale_factor": 2}, 2), ({"scale_factor": 1.7, "mode": "nearest"}, 1),
    ({"size": (4, 9, 11)}, 3), ({"size": 21, "mode": "nearest-exact"}, 2),
    ({"scale_factor": (2.5, 0.6), "mode": "bilinear"}, 2),
    ({"size": (17, 5), "mode": "bilinear", "align_corners": True}, 2),
    ({"scale_factor": 1.3, "mode": "bilinear", "recompute_scale_factor": True}, 2),
    ({"scale_factor": 2, "mode": "bicubic"}, 2), ({"size": 30, "mode": "linear"}, 1),
    ({"scale_factor": 2, "mode": "trilinear", "align_corners": True}, 3),
]  # fmt: skip


def _names(case) -> str:
    return f"{case[0].get('mode', 'nearest')}-{case[1]}d" if isinstance(case, tuple) else str(case)


@pytest.mark.parametrize(("case", "last"), [
    (case, last) for last in (False, True) for case in CASES if case[1] == 2 or not last
], ids=_names)  # fmt: skip
def test_the_gradient_is_eagers(case, last):
    how, sides = case
    torch.manual_seed(0)
    x = torch.randn(2, 3, *SIDES[sides])
    if last:
        x = x.to(memory_format=torch.channels_last)
    x.requires_grad_()

    def model(x):
        return F.interpolate(x.sin(), **how) * 2

    made = torchweld.fuse(model)
    expected, result = model(x), made(x)
    torch.testing.assert_close(result, expected)
    weights = torch.randn_like(expected)
    gradients = [torch.autograd.grad(y, x, weights)[0] for y in (expected, result)]
    torch.testing.assert_close(gradients[1], gradients[0])
    backward = torchweld.records(made)[-1]
    called = [getattr(n, "target", "") for n in backward.graph.nodes]
    assert any("upsample" in c and "backward" in c for c in called), called
    assert not any("index_put" in c for c in called)


def test_other_modes_stay():
    x = torch.randn(1, 2, 8, 8, requires_grad=True)
    for how in ({"size": 3, "mode": "area"}, {"size": 3, "mode": "bilinear", "antialias": True}):
        expected = F.interpolate(x, **how)
        torch.testing.assert_close(torchweld.fuse(F.interpolate)(x, **how), expected)


def test_windows_on_a_gpu_keep_their_gradient():
    assert interpolation._windows_backward(SimpleNamespace(is_cuda=True), [4], 0, 2, 1) is (
        NotImplemented
    )
    x = torch.randn(4, 9, requires_grad=True)
    made = torchweld.fuse(lambda x: x.unfold(1, 3, 2).square())
    gradient = torch.autograd.grad(made(x).sum(), x)[0]
    torch.testing.assert_close(
        gradient, torch.autograd.grad(x.unfold(1, 3, 2).square().sum(), x)[0]
    )


def test_windows_that_rows_share_are_added_up_once():
    """Of an istft, where torch makes an operation of each element of the window."""
    window, frames = torch.hann_window(64), torch.randn(3, 33, 9, dtype=torch.complex64)

    def model(frames):
        return torch.istft(frames, 64, 16, window=window)

    made = torchweld.fuse(model)
    torch.testing.assert_close(made(frames), model(frames))
    (record,) = torchweld.records(made)
    assert len(record.graph.nodes) < 10


@pytest.mark.parametrize("sides", [1, 2, 3])
@pytest.mark.parametrize("aligned", [False, True])
def test_the_operation_below_is_a_kernel_too(sides, aligned):
    """What `F.interpolate` becomes where autograd does not take it apart."""
    name = {1: "linear1d", 2: "bilinear2d", 3: "trilinear3d"}[sides]
    op = getattr(torch.ops.aten, f"upsample_{name}").default
    x, size = torch.randn(2, 3, *SIDES[sides]), [2 * n + 1 for n in SIDES[sides]]

    def model(x):
        return op(x, size, aligned) * 2

    with torch.no_grad():
        made = torchweld.fuse(model)
        torch.testing.assert_close(made(x), model(x))
    (record,) = torchweld.records(made)
    assert [type(n).__name__ for n in record.graph.nodes] == ["Comp"]


def test_linear_modes_are_taken_apart():
    known = {str(op) for op in decompose.table()}
    names = ("linear1d", "bilinear2d", "trilinear3d")
    assert {f"aten.upsample_{n}.{how}" for n in names for how in ("default", "vec")} <= known
