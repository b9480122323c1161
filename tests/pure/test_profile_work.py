"""Bytes and arithmetic of ATen calls and of planned kernels, against counts by hand."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from torchweld.core import dtypes
from torchweld.ir.nodes import Buffer, Graph, View
from torchweld.ir.parser import parse_comp
from torchweld.observe.measure.recorder import record
from torchweld.observe.predict.flops import BACKWARD, POINTWISE, POINTWISE_BACKWARD
from torchweld.observe.predict.work import Work, call_work, node_work, rate_name


def recorded(function, *args):
    """The calls that `function(*args)` makes."""
    with torch.no_grad():
        return record(lambda: function(*args), {}).calls


def only(function, *args):
    (call,) = recorded(function, *args)
    return call_work(call)


X = torch.randn(6, 10)


def test_a_pointwise_call_reads_and_writes_each_tensor_once():
    work = only(torch.add, X, X.clone())
    assert (work.bytes, work.dtype, work.product, work.operator) == (
        3 * 240, "float32", False, "aten::add")


def test_an_expanded_operand_is_read_once():
    assert only(torch.add, X, torch.randn(10)).bytes == 2 * 240 + 40


def test_an_embedding_reads_rows_and_not_the_table():
    table = torch.randn(1000, 8)
    work = only(F.embedding, torch.tensor([1, 2, 3]), table)
    assert work.bytes < 400


@pytest.mark.parametrize(("function", "args", "flops"), [
    (torch.mm, (X, X.T), 2 * 6 * 6 * 10),
    (torch.addmm, (torch.randn(6), X, X.T), 2 * 6 * 6 * 10),
    (torch.bmm, (torch.randn(2, 3, 4), torch.randn(2, 4, 5)), 2 * 2 * 3 * 4 * 5),
    (F.conv2d, (torch.randn(1, 3, 8, 8), torch.randn(4, 3, 3, 3)), 2 * 4 * 3 * 9 * 36),
    (F.scaled_dot_product_attention, (torch.randn(1, 2, 7, 4),) * 3, 2 * 2 * 2 * 7 * 7 * 4),
])
def test_products_count_two_a_multiply_add(function, args, flops):
    work = only(function, *args)
    assert (work.product, work.flops) == (True, flops)


@pytest.mark.parametrize(("rows", "share"), [(7, 1.0), (512, 640 / 1024)])
def test_causal_attention_needs_the_blocks_up_to_the_diagonal(rows, share):
    x = torch.randn(1, 1, rows, 4)
    causal = only(lambda: F.scaled_dot_product_attention(x, x, x, is_causal=True))
    assert causal.flops == share * 2 * 2 * rows * rows * 4


@pytest.mark.parametrize(("function", "args", "gemm"), [
    (torch.addmm, (torch.randn(8), X, torch.randn(10, 8)), (1, 6, 8, 10)),
    (torch.bmm, (torch.randn(2, 3, 4), torch.randn(2, 4, 5)), (2, 3, 5, 4)),
    (F.conv2d, (torch.randn(2, 3, 8, 8), torch.randn(4, 3, 3, 3)), (1, 2 * 36, 4, 27)),
    (F.gelu, (X,), None),
])
def test_the_sizes_of_a_product(function, args, gemm):
    assert only(function, *args).gemm == gemm


@pytest.mark.parametrize(("function", "args", "results"), [
    (torch.mul, (X, X.clone()), 0),
    (torch.mul, (X, 2.0), 0),
    (torch.mul, (X, torch.randn(10)), 60),  # a row for every row
    (torch.add, (X, torch.randn(10, 6).T), 60),
    (lambda x: torch.cat((x, x)), (X,), 120),
    (lambda x: x.sum(-1), (X,), 0),
    (lambda x: x[torch.tensor([1, 2])], (X,), 0),
])
def test_results_that_lie_otherwise_than_their_operands(function, args, results):
    assert only(function, *args).scattered == results


@pytest.mark.parametrize(("function", "args", "results"), [
    (torch.mul, (X, torch.randn(10)), 0),
    (torch.add, (X, torch.randn(10, 6).T), 60),
    (torch.add, (torch.randn(10, 6).T, torch.randn(10, 6).T), 0),
    (torch.clone, (X.T,), 0),  # keeps the order
    (lambda x: x.T.contiguous(), (X,), 60),
    (lambda x: F.layer_norm(x.T, (6,)), (X,), 60),
    (lambda x: x.permute(1, 0, 2).contiguous(), (torch.randn(3, 4, 5),), 0),
])
def test_results_whose_neighbours_are_far_apart_in_an_operand(function, args, results):
    assert only(function, *args).turned == results


@pytest.mark.parametrize(("function", "name"), [
    (F.gelu, "aten::gelu float32"),
    (lambda x: F.gelu(x, approximate="tanh"), "aten::gelu tanh float32"),
    (lambda x: x @ x.T, "aten::mm float32"),
    (lambda x: F.batch_norm(x, None, None, training=True), "aten::native_batch_norm True float32"),
])
def test_what_is_asked_of_an_operator_by_name_has_a_rate_of_its_own(function, name):
    assert rate_name(only(function, X)) == name


def test_convolutions_of_single_points_have_a_rate_of_their_own():
    image = torch.randn(2, 3, 8, 8)
    assert only(F.conv2d, image, torch.randn(4, 3, 1, 1)).like == POINTWISE
    assert only(F.conv2d, image, torch.randn(4, 3, 3, 3)).like == "aten::convolution"
    assert gradient_of_convolution(1).like == POINTWISE_BACKWARD
    assert gradient_of_convolution(3).like == BACKWARD


def gradient_of_convolution(window: int) -> Work:
    image, weight = torch.randn(2, 3, 8, 8), torch.randn(4, 3, window, window)
    result = F.conv2d(image, weight)
    ones, none = (1, 1), (0, 0)
    return only(torch.ops.aten.convolution_backward, result, image, weight, None, ones, none, ones,
                False, none, 1, (True, True, False))  # fmt: skip


def test_in_place_calls_are_seen():
    calls = recorded(lambda x: x.add_(x), X.clone())
    assert [c.name for c in calls] == ["aten::add_"]
    assert call_work(calls[0]).bytes >= 2 * 240


def test_views_and_allocations_are_no_work():
    assert recorded(lambda x: (x.T, x[1:], x.view(-1), torch.empty(3)), X) == ()


def test_bfloat16_counts_two_bytes():
    x = X.bfloat16()
    work = only(torch.mul, x, x.clone())
    assert (work.bytes, work.dtype) == (3 * 120, "bfloat16")


def planned(comp: str, **buffers):
    """The work of one Comp over contiguous float32 buffers."""
    node = parse_comp(comp)
    layouts = {name: Buffer(name, shape, dtypes.f32, tuple(torch.empty(shape).stride()))
               for name, shape in buffers.items()}
    written = tuple(View(n, layouts[n].shape, layouts[n].strides) for n in node.writes)
    return node_work(node, Graph("g", (), layouts, (node,), node.reads, written))


def test_a_kernel_with_a_product_in_it_is_a_product():
    work = planned("""comp c [m:5, n:7, k:24] {
      %0 = load x[m, k] : f32
      %1 = load w[n, k] : f32
      %2 = mul %0 %1 : f32
      %3 = reduce.sum[k] %2 : f32
      %4 = tanh %3 : f32
      store y[m, n] %4
    }""", x=(5, 24), w=(7, 24), y=(5, 7))
    assert (work.product, work.flops, work.gemm) == (True, 2 * 5 * 7 * 24, (1, 5, 7, 24))
    assert work.bytes == 4 * (5 * 24 + 7 * 24 + 5 * 7)


def test_a_sum_of_squares_is_no_product():
    work = planned("""comp c [m:5, k:24] {
      %0 = load x[m, k] : f32
      %1 = mul %0 %0 : f32
      %2 = reduce.sum[k] %1 : f32
      store y[m] %2
    }""", x=(5, 24), y=(5,))
    assert (work.product, work.bytes) == (False, 4 * (5 * 24 + 5))


def test_large_results_come_in_new_memory():
    big = torch.empty(3000, 3000)
    assert only(torch.neg, big).fresh_bytes == big.nbytes
    assert only(torch.neg, X).fresh_bytes == 0
    assert recorded(lambda: big.mul_(2)) and only(lambda: big.mul_(2)).fresh_bytes == 0
