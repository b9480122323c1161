"""Which convolutions are laid out channels last on a GPU, and that the graph means the same."""

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
from torchweld.layout import channels, precision
from torchweld.layout.channels import channels_last, is_channels_last
from torchweld.targets.find import named_target

TABLE = named_target("H100")
f32, bf16 = torch.float32, torch.bfloat16


def convolution(
    size, given=8, made=8, window=3, groups=1, transposed=False, dtype=bf16, after=True, **how
):
    """A function of an image and a weight, and these."""
    rank = len(size)
    call = getattr(F, f"conv{'_transpose' if transposed else ''}{rank}d")
    shape = (given, made // groups) if transposed else (made, given // groups)

    def run(x, w):
        y = call(x, w, groups=groups, **how)
        return y.relu() if after else y

    return run, (torch.randn(2, given, *size, dtype=dtype),
                 torch.randn(*shape, *(window,) * rank, dtype=dtype))  # fmt: skip


def laid_out(function, args):
    before = lower(capture(function, *args), Options()).graph
    after = channels_last(before, TABLE)
    check_graph(after)
    inputs = [a.float() for a in args]
    for one, other in zip(run_graph(before, inputs), run_graph(after, inputs), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)
    return after


def layouts(graph) -> list[bool]:
    """Of each convolution, whether it reads channels last."""
    return [is_channels_last(n.args[0]) for n in graph.nodes if isinstance(n, Extern)]


@pytest.mark.parametrize("expected,how", [
    (True, dict(size=(7, 9))),
    (True, dict(size=(7, 9), dtype=f32)),
    (True, dict(size=(7, 9), groups=2)),
    (True, dict(size=(7, 9), groups=8, dtype=f32)),
    (True, dict(size=(7, 9), transposed=True)),
    (True, dict(size=(5, 4, 6))),
    (True, dict(size=(5, 4, 6), given=3, transposed=True)),
    (True, dict(size=(7, 9), made=3)),
    (False, dict(size=(7, 9), made=3, dtype=f32)),
    (False, dict(size=(5, 4, 6), given=3)),
    (False, dict(size=(5, 4, 6), groups=8)),
    (False, dict(size=(9,))),
    (False, dict(size=(7, 9), window=1, dtype=f32)),
    (True, dict(size=(7, 9), window=1)),
    (False, dict(size=(7, 9), given=16, made=16, window=1, groups=2, dtype=f32)),
    (False, dict(size=(7, 9), given=60, made=120, groups=5)),
    (False, dict(size=(5, 4, 6), given=16, made=32, groups=4, dtype=f32)),
    (True, dict(size=(7, 9), given=96, made=96, groups=8)),  # four are one of 48
    (True, dict(size=(8, 6), given=96, made=96, groups=16, stride=2, padding=1)),
    (False, dict(size=(7, 9), given=96, made=96, groups=16, stride=2)),  # sides that it divides not
    (True, dict(size=(7, 9), given=96, made=192, groups=2)),
    (True, dict(size=(7, 9), given=60, made=120, groups=5, transposed=True)),
], ids=str)  # fmt: skip
def test_who_is(expected, how):
    assert layouts(laid_out(*convolution(**how))) == [expected]


@pytest.mark.parametrize("how,copies", [
    (dict(size=(7, 9), groups=8), 2), (dict(size=(5, 4, 6)), 2), (dict(size=(7, 9)), 0),
    (dict(size=(5, 4, 6), groups=8), 0), (dict(size=(7, 8, 9), groups=8, window=5), 0),
], ids=str)  # fmt: skip
def test_a_result_that_the_caller_sees_is_copied_where_much_is_gained(how, copies):
    after = laid_out(*convolution(**how, after=False))
    assert len([n for n in after.nodes if isinstance(n, Comp)]) == copies
    (view,) = after.outputs
    assert view.strides == torch.empty(view.shape).stride()


@pytest.mark.parametrize(("window", "expected"), [(3, [True] * 3), (5, [True, False, True])])
def test_volumes_whose_channels_are_alone_do_not_decide(window, expected):
    """Those that will be pointwise work read what the others make; calls are given eager's
    layout."""

    def run(x, u, v, w):
        y = F.conv3d(F.conv3d(x, u).relu(), v, groups=16, padding=window // 2).relu()
        return F.conv3d(y, w).relu()

    shapes = (2, 8, 7, 8, 7), (16, 8, 3, 3, 3), (16, 1, *(window,) * 3), (8, 16, 3, 3, 3)
    assert layouts(laid_out(run, [torch.randn(s, dtype=bf16) for s in shapes])) == expected


def test_one_that_loses_stays_among_others():
    """Its image is written without channels last by what comes before."""

    def run(x, w, v):
        return F.conv2d(F.conv2d(x, w).relu(), v).tanh()

    args = torch.randn(2, 8, 9, 9), torch.randn(16, 8, 3, 3), torch.randn(3, 16, 1, 1)
    assert layouts(laid_out(run, args)) == [True, False]


def test_products_of_pixels_do_not_count():
    """In float32 they are as fast either way: the depthwise convolution between them decides."""

    def run(x, v, w, u):
        y = F.conv2d(F.conv2d(x, v).relu(), w, groups=64).relu()
        return F.conv2d(y, u).relu()

    x, v, u = torch.randn(2, 16, 9, 9), torch.randn(64, 16, 1, 1), torch.randn(16, 64, 1, 1)
    assert layouts(laid_out(run, (x, v, torch.randn(64, 1, 3, 3), u))) == [True, True, True]


def test_groups_of_pixels_count():
    """They are slower with channels last, and have more of the arithmetic here."""

    def run(x, v, w):
        return F.conv2d(F.conv2d(x, v, groups=2).relu(), w, groups=64).relu()

    args = torch.randn(2, 64, 9, 9), torch.randn(64, 32, 1, 1), torch.randn(64, 1, 3, 3)
    assert layouts(laid_out(run, args)) == [False, False]


def test_groups_of_pixels_count_in_16_bits():
    def run(x, v):
        return F.conv2d(x, v, groups=2).relu()

    x, v = torch.randn(2, 64, 9, 9, dtype=bf16), torch.randn(64, 32, 1, 1, dtype=bf16)
    assert layouts(laid_out(run, (x, v))) == [False]


def test_pixels_in_groups_do_not_count_in_16_bits():
    """They are products of our own in inference: the other convolution decides. In training, their
    gradients are the library's."""

    def run(x, v, w):
        return F.conv2d(F.conv2d(x, v, groups=2).relu(), w, groups=64).relu()

    shapes = (2, 64, 9, 9), (64, 32, 1, 1), (64, 1, 3, 3)
    args = [torch.randn(s, dtype=bf16) for s in shapes]
    graph = lower(capture(run, *args), Options()).graph
    assert layouts(laid_out(run, args)) == [True, True]
    assert layouts(channels_last(graph, TABLE, frozenset((0,)))) == [False, False]


def halves(x, u, v, w):
    y = F.conv2d(x, u).relu()
    return F.conv2d(y[:, :24], v).relu() + F.conv2d(y[:, 24:], w).relu()


def test_one_channel_alone_does_not_gain_in_float32():
    """Rows of words, as a TextCNN reads them. Next to others it lies as they do."""
    shapes = (6, 1, 17, 68), (14, 1, 5, 68)
    x, w = (torch.randn(s) for s in shapes)
    after = laid_out(lambda x, w: F.conv2d(x * 2, w, padding=(4, 0)).relu(), (x, w))
    (node,) = (n for n in after.nodes if isinstance(n, Extern))
    assert after.buffers[node.outputs[0]].strides == (294, 21, 1, 1)

    turned = laid_out(lambda x, w: F.conv_transpose2d(x * 2, w).relu(),
                      (torch.randn(2, 1, 9, 9), torch.randn(1, 8, 3, 3)))
    assert layouts(turned) == [False]

    def two(x, w, v):
        return F.conv2d(F.conv2d(x * 2, w).relu(), v).relu()

    args = torch.randn(2, 1, 20, 20), torch.randn(32, 1, 3, 3), torch.randn(64, 32, 3, 3)
    assert layouts(laid_out(two, args))[1]


def test_some_channels_of_an_image_are_read_where_they_are():
    shapes = (2, 8, 9, 9), (40, 8, 3, 3), (16, 24, 3, 3), (16, 16, 3, 3)
    after = laid_out(halves, [torch.randn(s, dtype=bf16) for s in shapes])
    _, *parts = (n for n in after.nodes if isinstance(n, Extern))
    whole = after.buffers[parts[0].args[0].buffer]
    assert is_channels_last(whole.view) and whole.shape[1] == 40
    assert {n.args[0].buffer for n in parts} == {whole.name}
    assert [(n.args[0].strides, n.args[0].offset) for n in parts] == [
        (whole.strides, 0), (whole.strides, 24)
    ]  # fmt: skip


@pytest.mark.parametrize("loose", [True, False])
def test_some_channels_that_a_backward_sees_lie_so_too(loose):
    def run(x, w, v):
        part = F.conv2d(x, w).relu()[:, 24:]
        return F.conv2d(part, v).sin().sum(), part

    shapes = (2, 8, 9, 9), (40, 8, 3, 3), (16, 16, 3, 3)
    args = [torch.randn(s, dtype=bf16) for s in shapes]
    before = lower(capture(run, *args), Options()).graph
    after = channels_last(before, TABLE, frozenset((1,)) if loose else frozenset())
    check_graph(after)
    _, part = after.outputs
    assert (part.strides[1] == 1, part.offset == 24) == (loose, loose)
    for one, other in zip(run_graph(before, args), run_graph(after, args), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("place", [(0, 1, 2), (0, 1, 2, 3), (1,)])
def test_an_image_of_which_the_caller_sees_a_row_stays_as_it_is(place):
    def run(x, w, v):
        y = F.conv2d(x, w).relu()
        return F.conv2d(y, v).sin(), y[place]

    shapes = (2, 8, 9, 9), (16, 8, 3, 3), (16, 16, 3, 3)
    after = laid_out(run, [torch.randn(s, dtype=bf16) for s in shapes])
    assert after.buffers[after.outputs[1].buffer].view.strides == (784, 49, 7, 1)


def test_some_images_of_a_batch_are_not():
    """Which a call may read in any layout."""

    def run(x, w, v):
        y = F.conv2d(x, w).relu()
        return F.conv2d(y[1:], v).relu()

    shapes = (3, 8, 9, 9), (16, 8, 3, 3), (16, 16, 3, 3)
    after = laid_out(run, [torch.randn(s, dtype=bf16) for s in shapes])
    *_, last = (n for n in after.nodes if isinstance(n, Extern))
    assert last.args[0].strides == torch.empty(3, 16, 7, 7).stride()


def gradients(g, x, w):
    back, (one, none) = torch.ops.aten.convolution_backward.default, ([1, 1], [0, 0])
    return back(g, x, w, [0], one, none, one, False, none, 1, [True, True, False])[:2]


@pytest.mark.parametrize("made", [True, False])
def test_a_gradient_that_the_caller_sees_is_copied_where_it_is_made_channels_last(made):
    """As it is where the result's gradient is computed: the runtime's copy would be slow."""
    g, w = torch.randn(2, 8, 7, 9, dtype=bf16), torch.randn(8, 4, 3, 3, dtype=bf16)
    x = torch.randn(2, 4, 9, 11, dtype=bf16)
    after = laid_out(lambda g, x, w: gradients(g.cos() if made else g, x, w), (g, x, w))
    (call,) = (n for n in after.nodes if isinstance(n, Extern))
    result = after.buffers[call.outputs[0]]
    assert is_channels_last(result.view) == is_channels_last(call.args[1]) == made
    assert after.outputs[0].strides == x.stride()
    assert (after.nodes[-1].writes == (after.outputs[0].buffer,)) == made


def near(t):
    return (t * 2**10).round() / 2**10


def below(t):
    return (t * 2**10).floor() / 2**10


def kept(t):
    return t


def narrowing(eager, last):
    """A convolution that does `last` to its factors with channels last, else `eager`."""

    def call(x, w, *rest):
        narrow = last if x.is_contiguous(memory_format=torch.channels_last) else eager
        return torch.ops.aten.convolution.default(narrow(x), narrow(w), *rest)

    return call


@pytest.mark.parametrize("eager,last,moved", [
    (kept, near, False), (near, near, True), (near, below, False), (below, near, True),
    (below, below, True), (kept, below, False), (near, kept, False), (kept, kept, False),
])  # fmt: skip
def test_precision_is_not_lost(monkeypatch, eager, last, moved):
    """Nor time, where cuDNN does without tensor cores."""
    precision._losses.cache_clear()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setitem(precision._CALLS, "aten.convolution.default", narrowing(eager, last))
    assert layouts(laid_out(*convolution((7, 9), dtype=f32))) == [moved]
    precision._losses.cache_clear()


def test_without_memory_to_ask_precision_is_not_risked(monkeypatch):
    def full(*args):
        raise torch.cuda.OutOfMemoryError

    precision._losses.cache_clear()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setitem(precision._CALLS, "aten.convolution.default", full)
    assert layouts(laid_out(*convolution((7, 9), dtype=f32))) == [False]


def test_16_bits_are_not_asked_about(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setitem(precision._CALLS, "aten.convolution.default", None)
    assert layouts(laid_out(*convolution((7, 9), dtype=bf16))) == [True]


@pytest.mark.parametrize("trains", [False, True])
def test_a_saved_image_keeps_the_layout_in_which_its_gradients_are_exact(monkeypatch, trains):
    """cuDNN may round to TF32 with channels last in the backward alone."""
    def backward_loses(node, other, graph):
        return node.target == "aten.convolution_backward.default"

    monkeypatch.setattr(channels, "loses_precision", backward_loses)
    function, args = convolution(size=(7, 9), dtype=f32)
    graph = lower(capture(function, *args), Options()).graph
    after = channels_last(graph, TABLE, frozenset((0,)) if trains else frozenset())
    assert layouts(after) == [not trains]


def rows(x, w):
    return F.gelu(F.conv1d(torch.tanh(x), w, stride=2, padding=1)).permute(0, 2, 1) + 1


@pytest.mark.parametrize(
    ("dtype", "length", "loose", "last"),
    [
        (torch.bfloat16, 512, (), True),
        (torch.float32, 512, (), False),  # slower in cuDNN, and there is no other kernel
        (torch.bfloat16, 511, (), False),  # the step does not divide it
        (torch.bfloat16, 512, (0,), False),  # the backward is cuDNN's
    ],
)
def test_rows_have_their_channels_innermost_where_the_kernel_is_ours(dtype, length, loose, last):
    torch.manual_seed(0)
    args = torch.randn(16, 128, length, dtype=dtype), torch.randn(128, 128, 3, dtype=dtype)
    before = lower(capture(rows, *args), Options()).graph
    after = channels_last(before, named_target("H100"), loose)
    (call,) = (n for n in after.nodes if isinstance(n, Extern))
    assert (call.args[0].strides[1] == 1) == last
    for one, other in zip(run_graph(after, list(args)), run_graph(before, list(args)), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)
    other_device = channels_last(before, named_target("A100"), loose)
    assert other_device == before
