"""Biases of convolutions leave the library's call where a kernel reads its result."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from lowered import capture

from torchweld.capture.lower import lower
from torchweld.core.options import Options
from torchweld.ir.check import check_graph
from torchweld.ir.interpret import run_graph
from torchweld.ir.nodes import Comp, Extern, Reduce
from torchweld.passes.biases import separate_biases
from torchweld.targets.find import named_target

TABLE = named_target("H100")


def separated(function, *args):
    before = lower(capture(function, *args), Options()).graph
    after = separate_biases(before, named_target("H100"))
    check_graph(after)
    return before, after


def has_bias(graph) -> list[bool]:
    calls = [n for n in graph.nodes if isinstance(n, Extern) and "convolution" in n.target]
    return [n.args[2] is not None for n in calls]


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("convolve,size,window", [
    (F.conv1d, (9,), (3,)), (F.conv2d, (9, 7), (3, 2)), (F.conv3d, (5, 4, 3), (2, 2, 2)),
    (F.conv_transpose2d, (4, 5), (3, 2)),
], ids=["1d", "2d", "3d", "transposed"])  # fmt: skip
def test_the_same_sums(convolve, size, window, batch):
    torch.manual_seed(0)
    x, w, b = torch.randn(batch, 4, *size), torch.randn(4, 4, *window), torch.randn(4)
    before, after = separated(lambda x, w, b: convolve(x, w, b).relu(), x, w, b)
    assert (has_bias(before), has_bias(after)) == ([True], [False])
    (one,), (other,) = (run_graph(g, [x, w, b]) for g in (before, after))
    torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def test_the_gradient_of_one_pixel_may_be_a_scalar():
    def gradients(t, x, w):
        return torch.ops.aten.convolution_backward(
            t.exp().view(1, 1, 1, 1), x, w, [1], [1, 1], [0, 0], [1, 1], False, [0, 0], 1,
            [True, True, True],
        )  # fmt: skip

    args = torch.randn(()), torch.randn(1, 2, 3, 3), torch.randn(1, 2, 3, 3)
    before, after = separated(gradients, *args)
    for one, other in zip(run_graph(before, args), run_graph(after, args), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def test_they_round_as_in_eager():
    """A 16-bit image is rounded before the bias is added, and after."""
    x, w, b = (torch.randn(s, dtype=torch.bfloat16) for s in ((2, 4, 5, 5), (4, 4, 3, 3), (4,)))
    _, after = separated(lambda x, w, b: F.conv2d(x, w, b).relu(), x, w, b)
    add = next(n for n in after.nodes if isinstance(n, Comp))
    assert {after.buffers[n].dtype.name for n in (*add.reads, *add.writes)} == {"bf16"}


@pytest.mark.parametrize("dtype,size,apart", [
    (torch.bfloat16, (5,), False), (torch.float32, (5,), True), (torch.bfloat16, (5, 5), True),
])  # fmt: skip
def test_depthwise_calls_of_aten_in_16_bits_keep_them(dtype, size, apart):
    convolve = F.conv1d if len(size) == 1 else F.conv2d
    x, w, b = torch.randn(2, 4, *size), torch.randn(4, 1, *(3 for _ in size)), torch.randn(4)
    args = [t.to(dtype) for t in (x, w, b)]
    _, after = separated(lambda x, w, b: convolve(x, w, b, groups=4).relu(), *args)
    assert has_bias(after) == [not apart]


def test_they_stay_where_a_call_reads_the_result():
    args = torch.randn(2, 4, 5, 80), torch.randn(4, 4, 3, 3), torch.randn(4)
    _, after = separated(lambda x, w, b: torch.sort(F.conv2d(x, w, b).flatten())[0].relu(), *args)
    assert has_bias(after) == [True]


def test_they_are_apart_where_another_convolution_reads_the_result():
    """Which may be pointwise work, or a kernel of ours: neither is known yet."""
    args = torch.randn(2, 4, 5, 5), torch.randn(4, 4, 3, 3), torch.randn(4), torch.randn(4, 1, 3, 3)
    before, after = separated(
        lambda x, w, b, v: F.conv2d(F.conv2d(x, w, b), v, groups=4).relu(), *args
    )
    assert has_bias(after) == [False, False]
    torch.testing.assert_close(run_graph(after, list(args)), run_graph(before, list(args)))


@pytest.mark.parametrize("channels, apart", [(8, True), (512, False)])
def test_they_stay_in_products_that_take_more_arithmetic_than_memory(channels, apart):
    shapes = (2, channels, 8, 8), (channels, channels, 2, 2), (channels,)
    args = [torch.empty(shape, dtype=torch.bfloat16) for shape in shapes]
    _, after = separated(lambda x, w, b: F.conv2d(x, w, b, stride=2).relu(), *args)
    assert has_bias(after) == [not apart]



def gradients(g, x, w, wanted=(True, True, True), transposed=False):
    channels, sides = g.shape[1], w.dim() - 2
    steps, none = [1] * sides, [0] * sides
    back = torch.ops.aten.convolution_backward.default
    found = back(g, x, w, [channels], steps, none, steps, transposed, none, 1, list(wanted))
    return [f for f, is_wanted in zip(found, wanted) if is_wanted]


def calls_of(graph) -> list[Extern]:
    return [n for n in graph.nodes if isinstance(n, Extern)]


def grouped(g):
    return (g.unflatten(1, (2, -1)).flatten(3).cos() * 2).reshape(g.shape)


@pytest.mark.parametrize("made", [lambda g: g, lambda g: g.cos(), grouped],
                         ids=["given", "computed", "of groups of channels"])  # fmt: skip
@pytest.mark.parametrize("size,batch,transposed", [
    ((9,), 3, False), ((5, 4), 1, False), ((5, 4), 3, True), ((5, 4, 3), 2, False),
])  # fmt: skip
def test_a_gradient_is_summed_apart(size, batch, transposed, made):
    torch.manual_seed(0)
    grown = [n + (-1 if transposed else 1) for n in size]
    g, x = torch.randn(batch, 4, *size), torch.randn(batch, 4, *grown)
    w = torch.randn(4, 4, *(2 for _ in size))
    before, after = separated(
        lambda g, x, w: gradients(made(g), x, w, transposed=transposed), g, x, w
    )
    assert [n.args[-1] for n in calls_of(after)] == [(True, True, False)]
    for one, other in zip(*(run_graph(graph, [g, x, w]) for graph in (before, after)), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def test_a_gradient_is_summed_in_float32():
    g, x = (torch.randn(2, 4, 5, 5, dtype=torch.bfloat16) for _ in range(2))
    w = torch.randn(4, 4, 1, 1, dtype=torch.bfloat16)
    _, after = separated(lambda g, x, w: gradients(g, x, w, (False, False, True)), g, x, w)
    (total,) = after.nodes  # nothing is left of the call
    (reduce,) = (i for i in total.body if isinstance(i, Reduce))
    assert reduce.dtype.name == "f32" and after.buffers[total.writes[0]].dtype.name == "bf16"


def test_a_slice_is_summed_by_the_call():
    g, x, w = torch.randn(2, 8, 5, 5), torch.randn(2, 4, 6, 6), torch.randn(4, 4, 2, 2)
    _, after = separated(lambda g, x, w: gradients(g[:, 4:], x, w), g, x, w)
    assert [n.args[-1] for n in calls_of(after)] == [(True, True, True)]


@pytest.mark.parametrize("rows,depth,dtype,target,apart", [
    (24, 64, torch.float32, "H100", True), (4096, 64, torch.float32, "H100", False),
    (24, 64, torch.bfloat16, "H100", False), (24, 64, torch.float32, "A100", False),
])  # fmt: skip
def test_small_products_of_float32_are_made_without_their_bias(rows, depth, dtype, target, apart):
    torch.manual_seed(0)
    args = [torch.randn(*shape, dtype=dtype) for shape in ((33,), (rows, depth), (depth, 33))]
    before = lower(capture(lambda b, x, w: torch.addmm(b, x, w).tanh(), *args), Options()).graph
    after = separate_biases(before, named_target(target))
    check_graph(after)
    calls = [n.target for n in after.nodes if isinstance(n, Extern)]
    assert calls == (["aten.mm.default"] if apart else ["aten.addmm.default"])
    (one,), (other,) = (run_graph(g, args) for g in (before, after))
    torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)
