"""Convolutions of rows in 16 bits become ones of images of one row that mean the same."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from lowered import capture

from torchweld.capture.lower import lower
from torchweld.core.options import Options
from torchweld.ir.check import check_graph
from torchweld.ir.interpret import run_graph
from torchweld.ir.nodes import Comp, Extern
from torchweld.layout import one_row
from torchweld.layout.channels import channels_last, is_channels_last
from torchweld.layout.coarse import coarsened
from torchweld.layout.one_row import rows_as_images
from torchweld.passes.biases import separate_biases
from torchweld.pipeline import plan_graph
from torchweld.targets.find import named_target

TABLE = named_target("H100")
bf16 = torch.bfloat16


def net(before=torch.tanh, after=torch.relu, transposed=False, bias=None, **how):
    convolve = F.conv_transpose1d if transposed else F.conv1d

    def run(x, w, *b):
        return after(convolve(before(x), w, *b, **how))

    return run


def args_of(image, weight, bias=False, dtype=bf16):
    torch.manual_seed(0)
    return [torch.randn(n, dtype=dtype) for n in (image, weight, *[weight[:1]] * bias)]


def changed(function, args, table=TABLE, loose=()):
    before = separate_biases(lower(capture(function, *args), Options()).graph, table)
    after = rows_as_images(before, table, loose)
    check_graph(after)
    return before, after


def same(one, other, args):
    wide = [a.double() for a in args]
    for found, expected in zip(run_graph(one, wide), run_graph(other, wide), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


@pytest.fixture
def any_price(monkeypatch):
    monkeypatch.setattr(one_row, "_pays", lambda *_: True)


def same_row(x):
    return x


CASES = [
    (net(padding=2), args_of((2, 16, 20), (24, 16, 5))),
    (net(padding=2), args_of((2, 16, 20), (24, 16, 5), bias=True)),
    (net(padding=4, dilation=4), args_of((2, 16, 20), (24, 16, 3))),
    (net(stride=2), args_of((2, 16, 21), (24, 16, 3))),
    (net(groups=4, padding=1), args_of((2, 32, 20), (32, 8, 3), bias=True)),
    (net(before=same_row, padding=1), args_of((2, 16, 20), (24, 16, 3))),  # given rows
    (net(after=same_row, padding=1), args_of((2, 16, 20), (24, 16, 3))),  # rows that are returned
    (net(before=same_row, after=same_row), args_of((2, 16, 20), (24, 16, 1))),
    (net(after=lambda y: y.transpose(1, 2).softmax(-1)), args_of((2, 16, 20), (24, 16, 3))),
    (net(before=lambda x: x.transpose(1, 2)), args_of((2, 20, 16), (24, 16, 3))),  # tokens
    (net(transposed=True, stride=2, padding=1), args_of((2, 16, 20), (16, 24, 4))),
]


@pytest.mark.parametrize(("function", "args"), CASES, ids=lambda _: "")
def test_the_same_meaning(function, args, any_price):
    before, after = changed(function, args)
    (call,) = (n for n in after.nodes if isinstance(n, Extern))
    assert call.args[0].shape[2] == call.args[1].shape[2] == 1
    assert after.buffers[call.outputs[0]].shape[2] == 1 and len(call.args[3]) == 2
    same(after, before, args)
    laid_out = channels_last(after, TABLE)
    check_graph(laid_out)
    (call,) = (n for n in laid_out.nodes if isinstance(n, Extern))
    alone = laid_out.buffers[call.outputs[0]].name in {v.buffer for v in laid_out.outputs}
    assert is_channels_last(call.args[0]) != (alone and call.args[1].shape[3] == 1)
    same(laid_out, before, args)


def test_one_after_the_other(any_price):
    def run(x, v, w):
        return F.conv1d(F.conv1d(x, v, padding=1).relu(), w, padding=2, dilation=2).relu()

    args = [torch.randn(n, dtype=bf16) for n in ((2, 8, 20), (16, 8, 3), (8, 16, 3))]
    before, after = changed(run, args)
    assert all(n.args[0].shape[2] == 1 for n in after.nodes if isinstance(n, Extern))
    laid_out = channels_last(after, TABLE)
    same(laid_out, before, args)
    assert len([n for n in laid_out.nodes if isinstance(n, Comp)]) == 3  # a copy of the image


def test_a_row_that_is_read_as_one_and_as_an_image(any_price):
    """Both are copied to the other layout."""

    def run(x, v, w):
        y = F.conv1d(x, v, padding=32, groups=16)[:, :, 1:].sin()
        return y + F.conv1d(x, w, padding=1)[:, :768].cos()

    args = [torch.randn(n, dtype=bf16) for n in ((2, 768, 20), (768, 48, 64), (768, 768, 3))]
    before, after = changed(run, args)
    laid_out = channels_last(after, TABLE)
    check_graph(laid_out)
    read = [n.args[0] for n in laid_out.nodes if isinstance(n, Extern)]
    assert sorted(len(v.shape) for v in read) == [3, 4]
    assert all(v.strides[1] == 1 for v in read)
    same(laid_out, before, args)


@pytest.mark.parametrize(("function", "args", "loose"), [
    (net(padding=1), args_of((2, 16, 20), (24, 16, 3), dtype=torch.float32), ()),
    (net(padding=1, groups=16), args_of((2, 16, 20), (16, 1, 3)), ()),  # pointwise work
    (net(padding=1), args_of((2, 2, 20), (24, 2, 3)), ()),  # few channels
    (net(padding=1), args_of((2, 16, 20), (24, 16, 3)), (0,)),  # gradients read the rows
    (net(padding=31, groups=16), args_of((2, 768, 80), (768, 48, 64)), ()),  # groups apart
], ids=lambda _: "")  # fmt: skip
def test_others_stay(function, args, loose, any_price):
    before, after = changed(function, args, loose=loose)
    assert before == after


@pytest.mark.parametrize(("image", "weight", "how", "templates"), [
    ((16, 256, 4096), (256, 256, 5), dict(padding=2), ["gemm/hopper"]),
    ((16, 256, 4096), (256, 256, 5), dict(padding=8, dilation=4), ["gemm/hopper"]),
    ((16, 512, 3199), (512, 512, 3), dict(stride=2), ["gemm/hopper"]),  # was the library's
    ((16, 256, 4096), (256, 64, 3), dict(padding=1, groups=4), ["gemm/hopper"]),
], ids=str)  # fmt: skip
def test_rows_are_kernels_of_ours_on_hopper(image, weight, how, templates):
    args = [torch.empty(n, dtype=bf16, device="meta") for n in (image, weight)]
    _, plan = plan_graph(capture(net(**how), *args, mode="real"), Options(), TABLE)
    assert not [n for n in plan.graph.nodes if isinstance(n, Extern)]
    assert [c.template for c in plan.choices if c.template.startswith("gemm")] == templates


def test_windows_of_one_are_products_that_join():
    def run(x, v, b, w, c):
        return F.conv1d(F.conv1d(x, v, b).relu(), w, c)

    shapes = (16, 64, 4096), (256, 64, 1), (256,), (64, 256, 1), (64,)
    args = [torch.empty(n, dtype=bf16, device="meta") for n in shapes]
    _, plan = plan_graph(capture(run, *args, mode="real"), Options(), TABLE)
    assert [c.template for c in plan.choices] == ["chain"]


@pytest.mark.parametrize("how", [dict(stride=2), dict(padding=1)], ids=str)
def test_rows_of_each_channel_before_an_image_of_one_row(how, any_price):
    """What the first writes is an image of one row for the second. It was no graph any more."""

    def run(x, v, w):
        rows = F.conv1d(torch.tanh(x), v, groups=16, **how)
        return F.conv1d(rows, w, padding=2).relu()

    torch.manual_seed(0)
    args = [torch.randn(n, dtype=bf16) for n in ((2, 16, 41), (16, 1, 3), (24, 16, 5))]
    captured = capture(run, *args)
    _, plan = plan_graph(captured, Options(debug=1), TABLE)
    same(plan.graph, lower(captured, Options()).graph, args)


def test_what_a_convolution_of_rows_writes_stays_rows():
    """A later pass takes its sides from its result."""

    def run(x, v, w):
        rows = F.conv1d(torch.tanh(x), v)
        return rows, F.conv2d(rows.unsqueeze(2), w)

    args = args_of((2, 16, 20), (24, 16, 5)) + args_of((24, 24, 1, 1), (24,))[:1]
    graph = lower(capture(run, *args), Options()).graph
    name = next(n.outputs[0] for n in graph.nodes if isinstance(n, Extern))
    assert coarsened(graph, [(name, (2, 24, 1, 16))]) == graph


def test_what_other_calls_write_keeps_its_shape():
    """A pool with places is an image of one row, which the convolution behind it reads as rows."""

    def run(x, w):
        y, places = F.max_pool2d(torch.tanh(x)[:, :, None], (1, 3), (1, 2), return_indices=True)
        return F.conv1d(y.squeeze(2), w, stride=2), places

    graph = lower(capture(run, *args_of((2, 8, 13), (16, 8, 3))), Options()).graph
    pool = next(n for n in graph.nodes if isinstance(n, Extern) and "pool" in n.target)
    assert coarsened(graph, [(pool.outputs[0], (2, 8, 6))]) == graph


def test_a_library_is_given_images():
    """On an A100, whose kernels of ours load windows element by element."""
    args = [torch.empty(n, dtype=bf16, device="meta") for n in ((16, 256, 4096), (256, 256, 5))]
    table = named_target("A100")
    _, plan = plan_graph(capture(net(padding=2), *args, mode="real"), Options(), table)
    (call,) = (n for n in plan.graph.nodes if isinstance(n, Extern))
    assert is_channels_last(call.args[0]) and call.args[0].shape == (16, 256, 1, 4096)


def test_a_length_that_is_known_at_the_call(any_price):
    torch.manual_seed(0)
    w = torch.randn(256, 256, 5, dtype=bf16)
    x = torch.randn(3, 256, 40, dtype=bf16)

    def run(x):
        return F.conv1d(x.tanh(), w, padding=2).relu()

    found = lower(capture(run, x, mode="symbolic"), Options())
    after = channels_last(rows_as_images(found.graph, TABLE), TABLE)
    check_graph(after)
    (call,) = (n for n in after.nodes if isinstance(n, Extern))
    assert call.args[0].shape[1:3] == (256, 1) and is_channels_last(call.args[0])
    same(after, found.graph, [x, *found.constants.values()])
