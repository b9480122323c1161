"""Depthwise convolutions become pointwise work that means the same; their weights lines."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from lowered import capture

from torchweld.capture.lower import lower
from torchweld.core.options import Options
from torchweld.ir.check import check_graph
from torchweld.ir.interpret import run_graph
from torchweld.ir.nodes import Extern, Load
from torchweld.passes.depthwise import depthwise_written_out
from torchweld.passes.taps import taps_apart
from torchweld.targets.cpu import cpu_target
from torchweld.targets.find import named_target

H100 = named_target("H100")
CPU = replace(cpu_target(1), features=("avx2", "avx512"))
CONVOLVE = {3: F.conv1d, 4: F.conv2d, 5: F.conv3d}
CASES = [
    ((2, 6, 9, 7), (6, 1, 3, 3), dict(padding=1)),
    ((2, 6, 9, 7), (6, 1, 3, 2), dict()),
    ((1, 5, 11, 13), (10, 1, 5, 4), dict(padding=(2, 3), stride=(2, 3))),
    ((2, 3, 14, 9), (3, 1, 3, 3), dict(padding=4, dilation=2)),
    ((2, 4, 10), (12, 1, 7), dict(padding=5, stride=4)),
    ((1, 4, 5, 4, 6), (4, 1, 3, 2, 3), dict(padding=1)),
    ((1, 4, 5, 4, 6), (4, 1, 3, 3, 3), dict(padding=(1, 2, 1), stride=(1, 2, 1))),
    ((2, 8, 4, 4), (8, 1, 1, 1), dict(stride=2)),
]


def made(shape, weight, how, bias=False, last=False, dtype=torch.float32):
    """The graph with the convolution, the one without it, and inputs."""
    torch.manual_seed(0)
    args = [torch.randn(n, dtype=dtype) for n in (shape, weight, *[weight[:1]] * bias)]
    if last:
        args[0] = args[0].to(memory_format=torch.channels_last)

    def function(x, w, b=None):
        return torch.relu(CONVOLVE[x.dim()](torch.tanh(x), w, b, groups=x.shape[1], **how))

    before = lower(capture(function, *args), Options()).graph
    after = depthwise_written_out(before, H100, Options())
    check_graph(after)
    return before, after, args


@pytest.mark.parametrize(("shape", "weight", "how"), CASES, ids=lambda _: "")
@pytest.mark.parametrize("bias", [False, True], ids=["", "bias"])
def test_the_same_meaning(shape, weight, how, bias):
    before, after, args = made(shape, weight, how, bias)
    assert not any(isinstance(n, Extern) for n in after.nodes)
    for one, other in zip(run_graph(after, args), run_graph(before, args), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


FILTERS = [
    ((2, 1, 9, 7), (1, 1, 3, 3), dict(padding=1)),
    ((2, 1, 9, 7), (2, 1, 1, 7), dict()),
    ((1, 3, 9, 7), (3, 3, 3, 3), dict(padding=1, stride=2)),
    ((2, 2, 10), (4, 2, 5), dict(padding=2)),
    ((1, 1, 4, 5, 6), (1, 1, 3, 3, 3), dict(padding=1)),
    ((2, 3, 8, 6), (1, 3, 1, 1), dict()),
]


@pytest.mark.parametrize(("shape", "weight", "how"), FILTERS, ids=str)
@pytest.mark.parametrize("transposed", [False, True], ids=["", "transposed"])
@pytest.mark.parametrize("bias", [False, True], ids=["", "bias"])
def test_a_few_channels_to_a_few(shape, weight, how, transposed, bias):
    if transposed:
        shape = shape[0], weight[0], *shape[2:]
    convolve, results = (TRANSPOSE if transposed else CONVOLVE)[len(shape)], weight[transposed]
    torch.manual_seed(0)
    args = [torch.randn(n) for n in (shape, weight, *[(results,)] * bias)]
    captured = capture(lambda *args: torch.relu(convolve(*args, **how)), *args)
    before = lower(captured, Options()).graph
    after = depthwise_written_out(before, H100, Options())
    check_graph(after)
    assert not any(isinstance(n, Extern) for n in after.nodes)
    for one, other in zip(run_graph(after, args), run_graph(before, args), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("shape", "weight"), [
    ((2, 1, 9, 9), (5, 1, 3, 3)),  # several results
    ((2, 4, 9, 9), (1, 4, 3, 3)),  # 36 factors
], ids=str)  # fmt: skip
def test_more_channels_stay_a_call(shape, weight):
    args = [torch.randn(shape), torch.randn(weight)]
    graph = lower(capture(lambda x, w: F.conv2d(x, w), *args), Options()).graph
    assert depthwise_written_out(graph, H100, Options()).nodes == graph.nodes


@pytest.mark.parametrize(("shape", "weight", "how"), [c for c in FILTERS if c[1][0] < 4], ids=str)
def test_gradients_of_images_of_a_few_channels(shape, weight, how):
    before, after, args = gradients(shape, weight, how, groups=1)
    (call,) = (n for n in after.nodes if isinstance(n, Extern))
    assert call.args[-1] == (False, True, False)
    for one, other in zip(run_graph(after, args), run_graph(before, args), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


def test_an_image_behind_other_rows():
    """Of tokens, the first of which is of no place."""

    def function(x, w):
        tokens = torch.tanh(x)
        image = tokens[:, 1:].transpose(1, 2).reshape(2, 6, 5, 4)
        return F.conv2d(image, w, groups=6, stride=2, padding=1), tokens

    args = [torch.randn(2, 21, 6), torch.randn(12, 1, 3, 3)]
    before = lower(capture(function, *args), Options()).graph
    after = depthwise_written_out(before, H100, Options())
    assert not any(isinstance(n, Extern) for n in after.nodes)
    for one, other in zip(run_graph(after, args), run_graph(before, args), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("shape", "weight", "groups", "dtype"), [
    ((2, 6, 9, 9), (6, 2, 3, 3), 3, torch.float32),  # two channels to a group
    ((2, 6, 9, 9), (4, 6, 3, 3), 1, torch.float32),
    ((2, 6, 9, 9), (6, 1, 6, 5), 6, torch.float32),  # many numbers to write out
    ((2, 6, 9, 9), (12, 1, 8, 8), 6, torch.float32),
    ((2, 6, 9, 9), (6, 1, 3, 3), 6, torch.float64),
])  # fmt: skip
def test_what_stays_a_call(shape, weight, groups, dtype):
    args = [torch.randn(n, dtype=dtype) for n in (shape, weight)]
    graph = lower(capture(lambda x, w: F.conv2d(x, w, groups=groups), *args), Options()).graph
    assert depthwise_written_out(graph, H100, Options()).nodes == graph.nodes


@pytest.mark.parametrize(("shape", "weight", "how", "pointwise"), [
    ((2, 3, 97, 143), (3, 1, 11, 1), {}, True),  # a blur
    ((2, 3, 30, 40), (3, 1, 5, 5), dict(padding=2), True),
    ((2, 1, 60, 64), (2, 1, 3, 3), {}, True),  # Sobel
    ((2, 8, 56, 56), (8, 1, 3, 3), dict(padding=1), True),
    ((2, 64, 200), (64, 1, 4), dict(padding=3), True),
    ((2, 64, 56, 56), (64, 1, 7, 1), dict(padding=(3, 0)), True),
    ((2, 64, 56, 56), (64, 1, 3, 3), dict(padding=1), False),
    ((2, 8, 28, 28), (8, 1, 3, 3), dict(padding=1, stride=2), False),
    ((2, 64, 200), (64, 1, 25), dict(padding=12), False),
    ((2, 3, 64, 64), (4, 3, 3, 3), dict(padding=1), False),
    ((2, 3, 64, 64), (3, 1, 6, 6), {}, False),
])  # fmt: skip
def test_few_channels_are_pointwise_on_a_cpu(shape, weight, how, pointwise):
    args = [torch.randn(n) for n in (shape, weight)]
    groups = shape[1] // weight[1]
    call = CONVOLVE[len(shape)]
    graph = lower(capture(lambda x, w: call(x, w, groups=groups, **how), *args), Options()).graph
    after = depthwise_written_out(graph, CPU, Options())
    assert any(isinstance(n, Extern) for n in after.nodes) == (not pointwise)
    if pointwise:
        for one, other in zip(run_graph(after, args), run_graph(graph, args), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("layout", ["channels last", "columns"])
def test_images_whose_rows_do_not_lie_together_stay_calls_on_a_cpu(layout):
    x, w = torch.randn(2, 3, 40, 50), torch.randn(3, 1, 3, 3)
    x = x.to(memory_format=torch.channels_last) if layout == "channels last" else x.mT
    graph = lower(capture(lambda x, w: F.conv2d(x, w, groups=3), x, w), Options()).graph
    assert depthwise_written_out(graph, CPU, Options()).nodes == graph.nodes


@pytest.mark.parametrize("options", [Options(fuse=False), Options(numerics="eager")], ids=repr)
def test_options_that_keep_the_call(options):
    before, after, _ = made((2, 6, 9, 7), (6, 1, 3, 3), dict(padding=1))
    assert depthwise_written_out(before, H100, options).nodes == before.nodes != after.nodes


def test_numbers_that_are_read_once_are_not_copied():
    """A copy would read and write as much as its reader does."""
    x = torch.randn(1, 100, 1, 4)
    graph = lower(capture(lambda x: F.max_pool2d(x, (1, 4)), x), Options()).graph
    (comp,) = graph.nodes
    assert len({i.index for i in comp.body if isinstance(i, Load)}) == 4
    assert taps_apart(graph).nodes == graph.nodes


@pytest.mark.parametrize("weight", [(6, 1, 3, 3), (12, 1, 3, 2)], ids=str)
@pytest.mark.parametrize("last", [False, True], ids=["first", "last"])
def test_weights_are_lines_where_channels_are_innermost(weight, last):
    before, after, args = made((2, 6, 9, 7), weight, dict(padding=1), last=last)
    apart = taps_apart(after)
    check_graph(apart)
    copies = [b for b in apart.buffers.values() if b.name not in after.buffers]
    assert [b.shape for b in copies] == ([(1, *weight[2:], weight[0])] if last else [])
    loads = [i.buffer for n in apart.nodes for i in n.body if isinstance(i, Load)]
    assert sum(name == b.name for name in loads for b in copies) == last * weight[2] * weight[3]
    for one, other in zip(run_graph(apart, args), run_graph(before, args), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


TRANSPOSE = {3: F.conv_transpose1d, 4: F.conv_transpose2d, 5: F.conv_transpose3d}


@pytest.mark.parametrize(("shape", "weight", "how"), [
    ((2, 6, 5, 7), (6, 1, 3, 3), dict(padding=1)),
    ((2, 6, 5, 7), (6, 1, 4, 4), dict(padding=1, stride=2)),
    ((2, 6, 5, 7), (6, 1, 3, 5), dict(padding=(1, 2), stride=2, output_padding=(1, 0))),
    ((2, 6, 5, 7), (6, 2, 3, 3), dict(stride=(2, 3))),  # two results of a channel
    ((2, 4, 9), (4, 1, 2), dict(stride=3)),  # places that nothing meets
    ((1, 4, 3, 4, 5), (4, 1, 3, 3, 3), dict(stride=2, padding=1)),
    ((2, 6, 5, 7), (6, 1, 3, 3), dict(padding=1, stride=2, dilation=2)),
], ids=str)  # fmt: skip
@pytest.mark.parametrize("bias", [False, True], ids=["", "bias"])
def test_transposed_ones(shape, weight, how, bias):
    torch.manual_seed(0)
    args = [torch.randn(shape), torch.randn(weight)]
    args += [torch.randn(weight[0] * weight[1])] * bias

    def function(x, w, b=None):
        return torch.relu(TRANSPOSE[x.dim()](torch.tanh(x), w, b, groups=x.shape[1], **how))

    before = lower(capture(function, *args), Options()).graph
    after = depthwise_written_out(before, H100, Options())
    check_graph(after)
    assert not any(isinstance(n, Extern) for n in after.nodes)
    for one, other in zip(run_graph(after, args), run_graph(before, args), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


def gradients(shape, weight, how, transposed=False, last=False, groups=None):
    """The graph of both gradients with and without the change, and inputs: the result's gradient,
    image, weight. As many `groups` as channels, if not said."""
    groups = groups or shape[1]
    torch.manual_seed(0)
    x, w = torch.randn(shape), torch.randn(weight)
    x = x.to(memory_format=torch.channels_last) if last else x
    sides = len(shape) - 2
    convolve = (TRANSPOSE if transposed else CONVOLVE)[len(shape)]
    y = torch.randn_like(convolve(x, w, groups=groups, **how))
    every = [how.get(name, n) for name, n in (("stride", 1), ("padding", 0), ("dilation", 1))]
    every = [n if isinstance(n, tuple) else (n,) * sides for n in every]
    rest = (None, *every, transposed, (0,) * sides, groups, (True, True, False))

    def function(y, x, w):
        dx, dw, _ = torch.ops.aten.convolution_backward(torch.tanh(y), x, w, *rest)
        return torch.relu(dx), dw

    before = lower(capture(function, y, x, w), Options()).graph
    after = depthwise_written_out(before, H100, Options())
    check_graph(after)
    return before, after, [y, x, w]


@pytest.mark.parametrize(("shape", "weight", "how"), [
    *(case for case in CASES if prod(case[1]) <= 27 * case[0][1]),
    ((2, 6, 9, 8), (6, 1, 3, 3), dict(padding=1, stride=2)),
    ((2, 6, 8, 9), (6, 1, 5, 5), dict(padding=2, stride=2)),
    ((2, 6, 9, 7), (12, 1, 3, 3), dict(padding=1)),  # two results of a channel
], ids=str)  # fmt: skip
@pytest.mark.parametrize("last", [False, True], ids=["first", "last"])
def test_gradients(shape, weight, how, last):
    """Of weights, cuDNN has a fast kernel in some cases with channels last."""
    last = last and len(shape) == 4 and weight[0] == shape[1]
    before, after, args = gradients(shape, weight, how, last=last)
    calls = [n for n in after.nodes if isinstance(n, Extern)]
    long_steps = max(np.atleast_1d(how.get("stride", 1))) > 1 and prod(weight[2:]) > 9
    assert len(calls) == (last and not long_steps)
    assert all(c.outputs[0] is None and c.args[-1] == (False, True, False) for c in calls)
    for one, other in zip(run_graph(after, args), run_graph(before, args), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


def test_gradients_of_images_that_were_transposed():
    before, after, args = gradients((2, 6, 5, 7), (6, 2, 3, 3), dict(stride=2), transposed=True)
    (call,) = (n for n in after.nodes if isinstance(n, Extern))
    assert call.outputs[0] is None  # two results of a channel, which the weight's sums leave
    for one, other in zip(run_graph(after, args), run_graph(before, args), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


def test_gradients_that_stay_a_call():
    """Of images, windows of more than 27 elements; of weights, of more than 49."""
    _, after, _ = gradients((2, 6, 9, 9), (6, 1, 6, 5), {})
    (call,) = (n for n in after.nodes if isinstance(n, Extern))
    assert call.args[-1] == (True, False, False)
    before, after, _ = gradients((2, 6, 9, 9), (6, 1, 8, 8), {})
    assert before.nodes == after.nodes
