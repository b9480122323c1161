"""Gradients of group norms on a GPU whose groups no program holds: sums of each channel first."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from lowered import check, comps

from torchweld.capture import lower as lowering
from torchweld.capture.lowering import call, norms
from torchweld.capture.lowering.call import spec_of
from torchweld.ir.nodes import Reduce

aten = torch.ops.aten


@pytest.fixture(autouse=True)
def on_a_gpu(monkeypatch):
    torch.manual_seed(0)
    for module in (call, lowering):
        monkeypatch.setattr(module, "spec_of", lambda *a: replace(spec_of(*a), device="cuda:0"))


def gradients(wanted=(True, True, True), weighted=True, last=False):
    def run(g, x, w):
        if last:
            g, x = (t.contiguous(memory_format=torch.channels_last) for t in (g, x))
        w = w if weighted else None
        saved = aten.native_group_norm(x, w, None, 3, 6, 20, 2, 1e-5)[1:]
        found = aten.native_group_norm_backward(g, x, *saved, w, 3, 6, 20, 2, list(wanted))
        return [f for f, asked in zip(found, wanted) if asked]

    return run


def args(dtype=torch.float32):
    shape = 3, 6, 4, 5
    return [t.to(dtype) for t in (torch.randn(shape), torch.randn(shape) + 3, torch.randn(6))]


@pytest.mark.parametrize("last", [False, True], ids=["nchw", "nhwc"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("wanted", [(True, True, True), (True, False, True), (True, False, False)])
def test_what_eager_gives(wanted, dtype, last, monkeypatch):
    monkeypatch.setattr(norms, "_HELD_GROUP", 59)
    check(gradients(wanted, last=last), *args(dtype), ulps=64)
    if not wanted[1] and not wanted[2]:
        check(gradients(wanted, weighted=False, last=last), *args(dtype), ulps=64)


def test_images_are_read_once_for_all_sums(monkeypatch):
    """Two kernels read an image and its gradient: one for sums of each channel, one that applies
    them."""

    def reading(held: int) -> list[bool]:
        monkeypatch.setattr(norms, "_HELD_GROUP", held)
        made = comps(check(gradients(), *args(), ulps=64))[1:]  # after the forward
        points = [c for c in made if len(c.axes) >= 4]
        return [any(isinstance(i, Reduce) for i in c.body) for c in points]

    assert reading(held=59) == [True, False]
    assert reading(held=60) == [True, True]
