"""Convolutions of images with few channels become ones of many that mean the same, and that the
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
from torchweld.passes import few_channels
from torchweld.passes.few_channels import wide_windows
from torchweld.pipeline import plan_graph
from torchweld.targets.find import named_target, target_of
from torchweld.templates.conv.comp import convolution_comp
from torchweld.templates.gemm.hopper.schedule import supports

TABLE = named_target("H100")
AVX512 = replace(target_of("cpu"), name="AVX-512", features=frozenset(("avx2", "avx512")))
DEFAULT = Options()


def net(**how):
    convolve = {3: F.conv1d, 4: F.conv2d, 5: F.conv3d}
    return lambda x, w: torch.relu(convolve[x.dim()](torch.tanh(x), w, **how))


def case(channels, size, window, dtype=torch.bfloat16):
    torch.manual_seed(0)
    x = torch.randn(2, channels, *size, dtype=dtype)
    return x, torch.randn(16, channels, *window, dtype=dtype)


def converted(function, args, options=DEFAULT):
    graph = channels_last(lower(capture(function, *args), Options()).graph, TABLE)
    after = wide_windows(graph, TABLE, options)
    check_graph(after)
    return graph, after


CASES = [
    (net(stride=2, padding=3), case(3, (20, 18), (7, 7))),
    (net(padding=1), case(7, (9, 11), (3, 4))),
    (net(), case(2, (12, 13), (5, 8))),
    (net(stride=4, padding=2), case(3, (24, 31), (11, 11))),
    (net(stride=(2, 1), padding=(1, 2)), case(8, (10, 9), (3, 3), torch.float16)),
    (net(stride=(1, 3), dilation=(2, 1)), case(8, (10, 14), (5, 2))),
    (net(stride=4, padding=4), case(8, (61,), (10,))),
    (net(stride=(1, 1, 2), padding=1), case(3, (4, 8, 9), (3, 3, 3))),
]


@pytest.fixture
def any_size(monkeypatch):
    """These are too small to gain."""
    monkeypatch.setattr(few_channels, "is_faster", lambda own_s, library_s: True)


@pytest.mark.parametrize(("function", "args"), CASES, ids=lambda _: "")
@pytest.mark.parametrize("last", [False, True], ids=["first", "last"])
def test_a_convolution_of_the_same_meaning(function, args, last, any_size):
    if last and args[0].dim() == 4:
        args = tuple(t.to(memory_format=torch.channels_last) for t in args)
    before, after = converted(function, args)
    (call,) = (n for n in after.nodes if isinstance(n, Extern))
    assert call.args[0].buffer not in before.buffers
    for one, other in zip(run_graph(after, list(args)), run_graph(before, list(args)), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)
    buffers = {n: replace(b, device="cuda:0") for n, b in after.buffers.items()}
    accesses = addressed(convolution_comp(call, buffers), buffers)
    assert supports(accesses, contraction_of(accesses), TABLE) is None


@pytest.mark.parametrize("channels", [3, 64])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("table", [TABLE, AVX512], ids=lambda t: t.name)
def test_sizes_that_are_not_known(channels, dtype, table):
    """Dynamo's graphs with symbols in the place of all sizes, the weight's too."""
    args = case(channels, (64, 64), (3, 3), dtype)
    captured = capture(net(padding=1), *args, mode="symbolic")
    _, plan = plan_graph(captured, Options(), table)
    assert any(n.target == "aten.convolution.default" for n in plan.graph.nodes
               if isinstance(n, Extern))  # fmt: skip


@pytest.mark.parametrize("options", [Options(numerics="eager"), Options(fuse=False)])
def test_what_stays_with_the_library_keeps_its_image(options, any_size):
    before, after = converted(*CASES[0], options)
    assert before == after


@pytest.mark.parametrize(("function", "args"), [
    (net(padding=1), case(16, (8, 8), (3, 3))),  # channels that fill steps
    (net(stride=2, padding=2), case(3, (9, 8), (5, 5))),  # rows that no step divides
    (net(dilation=2), case(3, (9, 9), (5, 5))),
    (net(padding=1, groups=3), (case(3, (8, 8), (9, 8))[0], case(1, (8, 8), (9, 8))[1][:15])),
    (net(padding=1), case(3, (8, 8), (5, 5), torch.float32)),
    (net(stride=(1, 2, 2)), case(3, (4, 8, 9), (3, 3, 3))),  # six dimensions
    (net(), case(7, (12, 8), (11, 1))),  # 7 elements are no 16 bytes
    (net(padding=1), case(3, (8, 8), (3, 3))),  # the whole window is one step of a depth
], ids=lambda _: "")  # fmt: skip
def test_others_stay(function, args, any_size):
    before, after = converted(function, args)
    assert before == after


@pytest.mark.parametrize("image,weight,how,gains", [
    ((64, 8, 98, 98), (64, 8, 3, 3), {}, True),  # 126 us, and 167 by the library
    ((64, 3, 224, 224), (64, 3, 7, 7), dict(stride=2, padding=3), True),  # 198 and 459
    ((32, 3, 16, 48, 48), (16, 3, 3, 3, 3), {}, False),  # 480 and 390
    ((2, 8, 9, 9), (16, 8, 3, 3), {}, False),
], ids=str)  # fmt: skip
def test_they_change_where_that_is_faster(image, weight, how, gains):
    x, w = (torch.empty(s, dtype=torch.bfloat16, device="meta") for s in (image, weight))
    graph = lower(capture(net(**how), x, w, mode="real"), Options()).graph
    assert (wide_windows(graph, TABLE, DEFAULT) != graph) == gains
