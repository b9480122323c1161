"""Depthwise convolutions and other windows as pointwise kernels do not spill. No GPU is needed."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.fx.experimental.proxy_tensor import make_fx

pytest.importorskip("triton")

from torchweld.capture.captured import Captured
from torchweld.core.options import Options
from torchweld.ir.nodes import Extern, Reduce
from torchweld.pipeline import plan_graph
from torchweld.plan.decisions import Plan
from torchweld.runtime.triton_compile import compile_source, resources
from torchweld.targets.find import named_target
from torchweld.templates.generate import generate_all

CONVOLVE = {4: F.conv2d, 5: F.conv3d}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("last", [False, True], ids=["first", "last"])
@pytest.mark.parametrize(("image", "window"), [
    ((8, 64, 16, 32, 32), (3, 3, 3)), ((16, 96, 56, 56), (5, 5)),
], ids=str)  # fmt: skip
def test_no_register_is_spilled(image, window, last, dtype):
    layout = torch.contiguous_format
    if last:
        layout = torch.channels_last if len(image) == 4 else torch.channels_last_3d
    x = torch.empty(image, dtype=dtype, device="meta").to(memory_format=layout)
    w = torch.empty(image[1], 1, *window, dtype=dtype, device="meta")

    def run(x, w):
        y = CONVOLVE[x.dim()](x, w, padding=tuple(n // 2 for n in window), groups=x.shape[1])
        return [F.silu(y)]

    check_registers(planned(run, x, w))


@pytest.mark.parametrize(("channels", "side", "size", "dtype"), [
    *((c, 14, 3, torch.float32) for c in (240, 241)),  # of images that registers hold
    *((c, 45, 5, d) for c in (120, 121)  # whose loads would wait for each other there
      for d in (torch.bfloat16, torch.float32)),
], ids=str)  # fmt: skip
def test_nor_where_a_mean_over_the_image_runs_along(channels, side, size, dtype):
    x = torch.empty(16, channels, side, side + 1, dtype=dtype, device="meta")
    w = torch.empty(channels, 1, size, size, dtype=dtype, device="meta")

    def run(x, w):
        y = F.hardswish(F.conv2d(x, w, padding=size // 2, groups=channels))
        return [y * y.mean((2, 3), keepdim=True).sigmoid()]

    plan = planned(run, x.to(memory_format=torch.channels_last), w)
    reducing = [n for n in plan.graph.nodes if any(isinstance(i, Reduce) for i in n.body)]
    assert [len(n.writes) for n in reducing] == [1]
    check_registers(plan)


@pytest.mark.parametrize("channels", [240, 241])
def test_nor_where_a_mean_over_the_image_is_beside(channels):
    """With the convolution inside."""
    x = torch.empty(16, channels, 14, 15, device="meta")
    w = torch.empty(channels, 1, 3, 3, device="meta")

    def run(x, w):
        y = F.hardswish(F.conv2d(x, w, padding=1, groups=channels))
        return [y, y.mean((2, 3))]

    plan = planned(run, x.to(memory_format=torch.channels_last), w)
    reducing = [n for n in plan.graph.nodes if any(isinstance(i, Reduce) for i in n.body)]
    assert [len(n.writes) for n in reducing] == [2]
    check_registers(plan)


def test_windows_are_not_read_beside_a_tile_of_products():
    """Of a concatenation that is added to one, half is a depthwise convolution."""
    x, u, v, w = (torch.empty(shape, dtype=torch.bfloat16, device="meta") for shape in (
        (16, 40, 55, 53), (39, 40, 1, 1), (39, 1, 3, 3), (77, 40, 1, 1)))  # fmt: skip

    def run(x, u, v, w):
        y = F.relu(F.conv2d(x, u))
        both = torch.cat([y, F.relu(F.conv2d(y, v, padding=1, groups=39))], 1)
        return [both[:, :77] + F.conv2d(x, w)]

    check_registers(planned(run, x, u, v, w))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("image", "weight"), [
    ((24, 1, 540, 546), (1, 1, 1, 7)), ((24, 3, 101, 99), (3, 3, 3, 3)), ((8, 1, 500), (4, 1, 27)),
], ids=str)  # fmt: skip
def test_filters_of_a_few_channels(image, weight, dtype):
    x, w = (torch.empty(shape, dtype=dtype, device="meta") for shape in (image, weight))
    convolve = F.conv1d if len(image) == 3 else F.conv2d
    check_registers(planned(lambda x, w: [F.relu(convolve(x, w))], x, w))


@pytest.mark.parametrize("last", [False, True], ids=["first", "last"])
@pytest.mark.parametrize("placed", [False, True])
def test_maxima_of_volumes(placed, last):
    layout = torch.channels_last_3d if last else torch.contiguous_format
    x = torch.empty(8, 16, 31, 33, 35, device="meta").to(memory_format=layout)

    def run(x):
        found = F.max_pool3d_with_indices(x, 3, 2, 1)
        return list(found) if placed else [found[0]]

    check_registers(planned(run, x))


def planned(run, *args) -> Plan:
    captured = Captured(make_fx(run)(*args), "test", "inference")
    return plan_graph(captured, Options(), named_target("H100"))[1]


def check_registers(plan: Plan) -> None:
    assert not any(isinstance(n, Extern) for n in plan.graph.nodes)
    for bundle in generate_all(plan.kernels).values():
        for source in bundle.sources:
            assert resources(compile_source(source, 90)).spill_bytes == 0
