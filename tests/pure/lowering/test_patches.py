"""Convolutions whose windows do not overlap become products that mean the same."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from lowered import capture

from torchweld.capture.lower import lower
from torchweld.core.options import Options
from torchweld.ir.check import check_graph
from torchweld.ir.interpret import run_graph
from torchweld.ir.nodes import Extern
from torchweld.layout.channels import channels_last
from torchweld.passes.patches import products_of_patches
from torchweld.pipeline import plan_graph
from torchweld.targets.find import named_target

TABLE = named_target("H100")


def net(stride, bias=True, **how):
    """A convolution between pointwise operations: its result is a temporary."""

    def run(x, w, b):
        y = F.conv2d(torch.relu(x), w, b if bias else None, stride=stride, **how)
        return torch.tanh(y).flatten(2).transpose(1, 2), F.avg_pool2d(y, 2)

    return run


def case(kernel, channels=8, size=(12, 20), groups=1, dtype=torch.bfloat16, results=16):
    torch.manual_seed(0)
    x = torch.randn(2, channels, *size, dtype=dtype)
    w = torch.randn(results, channels // groups, *kernel, dtype=dtype)
    return x, w, torch.randn(results, dtype=dtype)


def converted(function, args):
    graph = channels_last(lower(capture(function, *args), Options()).graph, TABLE)
    after = products_of_patches(graph)
    check_graph(after)
    return graph, after


def targets(graph) -> set[str]:
    return {n.target for n in graph.nodes if isinstance(n, Extern)}


@pytest.mark.parametrize("last", [False, True], ids=["nchw", "nhwc"])
@pytest.mark.parametrize("kernel", [(1, 1), (4, 4), (3, 5)])
@pytest.mark.parametrize("bias", [True, False])
def test_a_product_of_the_same_meaning(kernel, bias, last):
    x, w, b = case(kernel, size=(13, 22))  # some pixels at the edges are in no window
    if last:
        x, w = (t.to(memory_format=torch.channels_last) for t in (x, w))
    before, after = converted(net(kernel, bias), (x, w, b))
    assert targets(after) & {"aten.addmm.default", "aten.mm.default"}
    assert "aten.convolution.default" not in targets(after)
    args = [x, w, b]
    wanted = run_graph(before, args)
    for one, other in zip(run_graph(after, args), wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("kernel", "channels", "results"), [
    ((1, 1), 40, 67), ((4, 4), 8, 67), ((1, 1), 35, 16),
])  # fmt: skip
def test_odd_numbers_of_results_and_of_channels_that_can_be_padded(kernel, channels, results):
    args = case(kernel, channels, results=results)
    before, after = converted(net(kernel), args)
    assert "aten.convolution.default" not in targets(after)
    for one, other in zip(run_graph(after, list(args)), run_graph(before, list(args)), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kernel", [(1, 1), (4, 4)])
@pytest.mark.parametrize(("laid", "becomes"), [
    (lambda w: w.transpose(0, 1).contiguous().transpose(0, 1), True),  # as the other of two layers
    (lambda w: torch.cat((w, w), 1)[:, : w.shape[1]], True),
    (lambda w: torch.stack((w, w), 2).flatten(1, 2)[:, ::2], False),
], ids=["transposed", "a part", "every second"])  # fmt: skip
def test_weights_in_any_order(kernel, laid, becomes):
    """Steps of two between the elements of a row are no matrix's; the calls stay."""
    x, w, b = case(kernel)
    args = [x, laid(w), b]
    before, after = converted(net(kernel), args)
    if kernel == (1, 1):
        assert ("aten.convolution.default" not in targets(after)) == becomes
    for one, other in zip(run_graph(after, args), run_graph(before, args), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("function,args", [
    (net((1, 1)), case((1, 1), channels=3)),  # rows of 6 bytes are not worth padding
    (net((3, 3)), case((4, 4))),  # windows with gaps between them
    (net((4, 4), padding=2), case((4, 4))),
    (net((4, 4), groups=2), case((4, 4), groups=2)),
    (net((3, 3)), case((3, 3), channels=3)),  # rows of 27 are not aligned
    (net((4, 4)), case((4, 4), dtype=torch.float32)),
], ids=["few channels", "stride", "padding", "groups", "odd depth", "float32"])  # fmt: skip
def test_others_stay(function, args):
    _, after = converted(function, args)
    assert "aten.convolution.default" in targets(after)


def test_images_of_one_row():
    """Products in a row on one: an axis of one point, along which nothing is stored."""

    def run(x, w, v, b, c):
        return F.conv2d(torch.relu(F.conv2d(x, w, b)), v, c)

    shapes = (16, 64, 1, 4096), (256, 64, 1, 1), (64, 256, 1, 1), (256,), (64,)
    args = [torch.empty(s, dtype=torch.bfloat16, device="meta") for s in shapes]
    _, plan = plan_graph(capture(run, *args, mode="real"), Options(), TABLE)
    check_graph(plan.graph)
    assert [c.template for c in plan.choices] == ["chain"]
