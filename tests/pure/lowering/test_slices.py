"""Slices whose convolution is differentiated get buffers of their own; dense images do not."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from lowered import capture

from torchweld.capture.lower import lower
from torchweld.core.options import Options
from torchweld.ir.check import check_graph
from torchweld.ir.interpret import run_graph
from torchweld.ir.nodes import Comp, Extern
from torchweld.passes.slices import slices_apart
from torchweld.targets.find import named_target, target_of


def gradients(g, x, w):
    steps = [1] * (w.dim() - 2)
    none = [0] * len(steps)
    back = torch.ops.aten.convolution_backward.default
    return back(g, x, w, [0], steps, none, steps, False, none, 1, [True, True, False])[:2]


def apart(function, *args, target=None):
    before = lower(capture(function, *args), Options()).graph
    after = slices_apart(before, target or named_target("H100"))
    check_graph(after)
    for one, other in zip(run_graph(before, args), run_graph(after, args), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)
    calls = [n for n in after.nodes if isinstance(n, Extern)]
    copies = len([n for n in after.nodes if isinstance(n, Comp)])
    return copies - len([n for n in before.nodes if isinstance(n, Comp)]), calls


@pytest.mark.parametrize("view", [
    lambda g: g[:, 3:7], lambda g: g[:, 5:, 1:6, 2:], lambda g: g[:, ::2], lambda g: g[:, :4, 0],
    lambda g: g[:, :4, :, :1].expand(-1, -1, -1, 7),
], ids=["channels", "pixels", "every second", "a row", "expanded"])  # fmt: skip
def test_a_slice_has_its_own_buffer(view):
    g = torch.randn(2, 8, 6, 7)
    made = view(g)
    sides = [n + 2 for n in made.shape[2:]]
    w = torch.randn(made.shape[1], 3, *(3 for _ in sides))
    x = torch.randn(2, 3, *sides)
    copies, (call,) = apart(lambda g, x, w: gradients(view(g), x, w), g, x, w)
    assert copies == 1 and call.args[0].strides == torch.empty(made.shape).stride()


@pytest.mark.parametrize("view", [
    lambda g: g[1:3], lambda g: g.reshape(4, 4, 6, 14)[..., :, :], lambda g: g * 2,
], ids=["images", "reshaped", "computed"])  # fmt: skip
def test_a_dense_one_stays(view):
    g = torch.randn(4, 8, 6, 7)
    made = view(g)
    x = torch.randn(made.shape[0], 3, made.shape[2] + 2, made.shape[3] + 2)
    w = torch.randn(made.shape[1], 3, 3, 3)
    assert apart(lambda g, x, w: gradients(view(g), x, w), g, x, w)[0] == 0


def test_two_calls_share_a_copy():
    def run(g, x, w, v):
        part = g[:, :4]
        return *gradients(part, x[:, :3], w), *gradients(part, x[:, :3], v)

    g, x = torch.randn(2, 8, 6, 7), torch.randn(2, 5, 8, 9)
    copies, calls = apart(run, g, x, torch.randn(4, 3, 3, 3), torch.randn(4, 3, 3, 3))
    assert copies == 2 and calls[0].args[:2] == calls[1].args[:2]


@pytest.mark.parametrize("function,copies", [
    (lambda x, w: F.conv2d(x, w[:1].expand(8, 1, 3, 3), groups=8), 1),
    (lambda x, w: F.conv2d(x[:, :4], w[:4].mT, groups=4), 2),
    (lambda x, w: F.conv2d(x[:, :, 1:, ::2], w, groups=8), 1),
    (lambda x, w: F.conv2d(x, w, groups=8), 0),
    (lambda x, w: F.conv2d(x.view(2, 9, 7, 8).permute(0, 3, 1, 2)[:, :4], w[:4].mT, groups=4), 0),
    (lambda x, w: F.conv2d(x, (w * 2).view(2, 4, 9).exp().view(8, 1, 3, 3),
                           w[0, 0, 0, :1].expand(8), groups=8), 2),
], ids=["weight", "both", "image", "whole", "channels last", "reshaped weight, bias"])  # fmt: skip
def test_what_a_kernel_of_a_cpu_reads_is_whole(function, copies):
    x, w = torch.randn(2, 8, 9, 7), torch.randn(8, 1, 3, 3)
    cpu = replace(target_of("cpu"), features=("avx2",))
    found, (call,) = apart(function, x, w, target=cpu)
    assert found == copies
    if copies:
        assert all(k.strides == torch.empty(k.shape).stride() for k in call.args[:2])
    plain = replace(cpu, features=())
    assert apart(function, x, w, target=plain)[0] == 0
