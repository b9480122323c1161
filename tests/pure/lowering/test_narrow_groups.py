"""Convolutions in narrow groups become ones in wider groups that mean the same, and that the
template for images takes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from lowered import capture

from torchweld.capture.lower import lower
from torchweld.core.options import Options
from torchweld.ir.access import addressed
from torchweld.ir.check import check_graph
from torchweld.ir.contraction import contraction_of
from torchweld.ir.interpret import run_graph
from torchweld.ir.nodes import Extern
from torchweld.layout.channels import channels_last
from torchweld.passes import narrow_groups
from torchweld.passes.narrow_groups import wide_groups
from torchweld.pipeline import plan_graph
from torchweld.targets.find import named_target
from torchweld.templates.conv.comp import Call, call_of, convolution_comp
from torchweld.templates.gemm.hopper.schedule import supports
from torchweld.templates.gemm.triton import schedule as triton_schedule

TABLE = named_target("H100")
DEFAULT = Options()
convolve = {3: F.conv1d, 4: F.conv2d, 5: F.conv3d}


def net(groups, **how):
    def run(x, w):
        return torch.relu(convolve[x.dim()](torch.tanh(x), w, groups=groups, **how))

    return run


def case(channels, results, groups, size, window, dtype=torch.bfloat16):
    torch.manual_seed(0)
    x = torch.randn(2, channels, *size, dtype=dtype)
    return x, torch.randn(results, channels // groups, *window, dtype=dtype)


def converted(function, args, options=DEFAULT):
    graph = channels_last(lower(capture(function, *args), Options()).graph, TABLE)
    after = wide_groups(graph, TABLE, options)
    check_graph(after)
    return graph, after


CASES = [
    (net(8, padding=1), case(32, 32, 8, (9, 7), (3, 3)), 1),
    (net(32, padding=1), case(128, 128, 32, (6, 8), (3, 3), torch.float16), 2),
    (net(6, stride=2, padding=1), case(96, 48, 6, (8, 6), (3, 3)), 2),
    (net(6, padding=2, dilation=2), case(144, 144, 6, (7, 9), (3, 3)), 3),
    (net(5), case(40, 80, 5, (9, 9), (3, 5)), 1),
    (net(5, padding=1), case(120, 120, 5, (9, 9), (3, 3)), 1),
    (net(4, padding=1), case(32, 48, 4, (3, 4, 5), (3, 3, 3)), 1),
]


@pytest.fixture
def any_size(monkeypatch):
    """These are too small to gain: the first count of groups is taken."""
    monkeypatch.setattr(narrow_groups, "is_faster", lambda own_s, best_s: own_s < 1.0)


@pytest.mark.parametrize(("function", "args", "left"), CASES, ids=lambda _: "")
def test_a_convolution_of_the_same_meaning(function, args, left, any_size):
    call = taken(function, args)
    assert call.groups == left


LINES = [
    (net(3, padding=1), case(120, 180, 3, (9, 7), (3, 3)), "in lines"),
    (net(2, stride=2, padding=1), case(112, 56, 2, (8, 6), (3, 3)), "in lines"),
    (net(6, padding=1), case(120, 180, 6, (9, 7), (3, 3)), "joined, in lines"),
    (net(2, padding=2, dilation=2), case(180, 40, 2, (9, 9), (3, 3), torch.float16), "in lines"),
]


@pytest.mark.parametrize(("function", "args", "way"), LINES, ids=lambda _: "")
def test_channels_of_a_group_begin_a_line(function, args, way, monkeypatch):
    monkeypatch.setattr(narrow_groups, "_best", lambda node, ways, *_: way)
    call = taken(function, args)
    assert call.channels % 64 == 0 and call.image.strides[1] == 1


def taken(function, args) -> Call:
    """The convolution that is there after the pass: the graph means the same, and the template for
    images takes it."""
    before, after = converted(function, args)
    (call,) = (n for n in after.nodes if isinstance(n, Extern))
    for one, other in zip(run_graph(after, list(args)), run_graph(before, list(args)), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)
    buffers = {n: replace(b, device="cuda:0") for n, b in after.buffers.items()}
    accesses = addressed(convolution_comp(call, buffers), buffers)
    assert supports(accesses, contraction_of(accesses), TABLE) is None
    return call_of(call)


def test_lines_pay_where_groups_are_no_whole_lines():
    """40 channels: steps of 0.65 us become ones of 0.3. 64 are whole lines."""
    for channels, wanted in ((40, 64), (64, 64)):
        x, w = (torch.empty(s, dtype=torch.bfloat16, device="meta")
                for s in ((32, 3 * channels, 75, 75), (180, channels, 3, 3)))  # fmt: skip
        captured = capture(net(3, padding=1), x, w, mode="real")
        graph = channels_last(lower(captured, DEFAULT).graph, TABLE)
        (call,) = (n for n in wide_groups(graph, TABLE, DEFAULT).nodes if isinstance(n, Extern))
        assert call_of(call).channels == wanted


def planned(groups, image, weight, table, dtype=torch.bfloat16, **how) -> list[str]:
    """The templates that a plan has, and the library's convolutions."""
    x, w = (torch.empty(s, dtype=dtype, device="meta") for s in (image, weight))
    _, plan = plan_graph(capture(net(groups, **how), x, w, mode="real"), DEFAULT, table)
    calls = [n.target for n in plan.graph.nodes if isinstance(n, Extern)]
    return calls + [c.template for c in plan.choices if c.template.startswith("gemm")]


@pytest.mark.parametrize(("groups", "image", "weight", "how"), [
    (32, (16, 128, 56, 56), (128, 4, 3, 3), dict(padding=1)),
    (32, (16, 1024, 14, 14), (1024, 32, 3, 3), dict(padding=1, stride=2)),
    (5, (16, 120, 28, 28), (120, 24, 3, 3), dict(padding=1)),
    (9, (16, 432, 14, 14), (432, 48, 3, 3), dict(padding=1)),  # as they are
], ids=str)  # fmt: skip
def test_windows_in_groups_are_kernels_of_ours_on_hopper(groups, image, weight, how):
    assert planned(groups, image, weight, TABLE, **how) == ["gemm/hopper"]
    call = ["aten.convolution.default"]
    assert planned(groups, image, weight, named_target("A100"), **how) == call
    assert planned(groups, image, weight, TABLE, torch.float32, **how) == call


@pytest.mark.parametrize("device", ["H100", "A100"])
def test_pixels_in_groups_are_products_of_ours(device):
    """They were the library's, one group after the other."""
    shapes = (16, 576, 14, 14), (576, 32, 1, 1)
    assert planned(18, *shapes, named_target(device)) == ["gemm/triton"]
    call = ["aten.convolution.default"]
    assert planned(18, *shapes, named_target(device), torch.float32) == call


def test_a_tile_has_no_more_columns_than_a_group():
    x, w = case(576, 576, 18, (14, 14), (1, 1))
    _, after = converted(net(18), (x.repeat(8, 1, 1, 1), w))
    (call,) = (n for n in after.nodes if isinstance(n, Extern))
    accesses = addressed(convolution_comp(call, after.buffers), after.buffers)
    found = contraction_of(accesses)
    every = list(triton_schedule.candidates(accesses, found, TABLE))
    assert every and {(s.block_n, s.block_k) for s in every} == {(32, 32)}


@pytest.mark.parametrize("options", [Options(numerics="eager"), Options(fuse=False)])
def test_what_stays_with_the_library_keeps_its_groups(options, any_size):
    function, args, _ = CASES[0]
    before, after = converted(function, args, options)
    assert before == after


@pytest.mark.parametrize(("function", "args"), [
    (net(1, padding=1), case(32, 32, 1, (8, 8), (3, 3))),
    (net(32, padding=1), case(32, 32, 32, (8, 8), (3, 3))),  # channels apart
    (net(2, padding=1), case(128, 80, 2, (8, 8), (3, 3))),  # wide enough
    (net(4), case(32, 32, 4, (8, 8), (1, 1))),  # products
    (net(7, padding=1), case(21, 21, 7, (8, 8), (3, 3))),  # no pixels of whole 16 bytes
    (net(8, padding=1), case(32, 32, 8, (8, 8), (3, 3), torch.float32)),
    (net(8, stride=3, padding=1), case(32, 32, 8, (8, 8), (3, 3))),  # a side that no step divides
], ids=lambda _: "")  # fmt: skip
def test_others_stay(function, args, any_size):
    before, after = converted(function, args)
    assert before == after
