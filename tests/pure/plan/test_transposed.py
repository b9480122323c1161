"""Transposed convolutions become convolutions with phases of results that mean the same, with the
kernels that read them, where those are predicted to be faster."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.fx.experimental.proxy_tensor import make_fx

from torchweld.capture.captured import Captured
from torchweld.capture.lower import lower
from torchweld.core.options import Options
from torchweld.ir.check import check_graph
from torchweld.ir.interpret import run_graph
from torchweld.ir.nodes import Comp, Extern, Load
from torchweld.layout.channels import channels_last
from torchweld.passes.biases import separate_biases
from torchweld.pipeline import plan_graph
from torchweld.plan import transposed
from torchweld.plan.decisions import Plan
from torchweld.plan.search import plan
from torchweld.targets.find import named_target
from torchweld.templates.conv.comp import call_of
from torchweld.templates.gemm.choice import choose

TABLE, DEFAULT = named_target("H100"), Options()
TRANSPOSE = {3: F.conv_transpose1d, 4: F.conv_transpose2d, 5: F.conv_transpose3d}


def net(bias=False, after=torch.relu, **how):
    def run(x, w, b=None):
        return after(TRANSPOSE[x.dim()](torch.tanh(x), w, b if bias else None, **how))

    return run


def captured(function, *args) -> Captured:
    traced = make_fx(lambda *a: [function(*a)])(*args)
    return Captured(traced, "test", "inference")


@pytest.fixture
def any_price(monkeypatch):
    monkeypatch.setattr(transposed, "_best", lambda made, *_: (0.0, made.convolution))


CASES = [
    ((2, 8, 9, 7), (8, 16, 3, 3), dict(padding=1), 1),
    ((2, 8, 9, 7), (8, 16, 3, 3), dict(padding=1, dilation=2), 1),
    ((2, 8, 6, 7), (8, 16, 4, 4), dict(stride=2, padding=1), 4),
    ((2, 8, 6, 7), (8, 16, 2, 2), dict(stride=2), 4),
    ((1, 8, 6, 7), (8, 16, 3, 5), dict(stride=2, padding=(1, 2), output_padding=1), 4),
    ((2, 16, 5, 6), (16, 8, 4, 4), dict(stride=2, padding=1, groups=4), 4),
    ((2, 16, 1, 6), (16, 8, 3, 3), dict(stride=(1, 3), padding=1), 3),
    ((2, 8, 11), (8, 16, 4), dict(stride=2, padding=1), 2),
    ((2, 8, 11), (8, 16, 8), dict(stride=4, padding=2, groups=2), 4),
    ((2, 8, 3, 4, 5), (8, 16, 3, 3, 3), dict(stride=2), 8),
    ((2, 8, 3, 4, 5), (8, 16, 3, 4, 5), dict(stride=(1, 2, 2), padding=(1, 1, 2)), 4),
]


def changed(function, args, **how):
    graph = lower(captured(function, *args), DEFAULT).graph
    graph = channels_last(separate_biases(graph, TABLE), TABLE)
    before = plan(graph, TABLE, DEFAULT)
    after = transposed.transposed_turned(before, TABLE, Options(**how), choose)
    check_graph(after.graph)
    return before.graph, after.graph


@pytest.mark.parametrize(("image", "weight", "how", "phases"), CASES, ids=str)
@pytest.mark.parametrize("bias", [False, True], ids=["", "bias"])
def test_the_same_meaning(image, weight, how, phases, bias, any_price):
    torch.manual_seed(0)
    results = weight[1] * how.get("groups", 1)
    args = [torch.randn(n, dtype=torch.bfloat16) for n in (image, weight, *[(results,)] * bias)]
    before, after = changed(net(bias, **how), args)
    (call,) = (n for n in after.nodes if isinstance(n, Extern))
    made = after.buffers[call.outputs[0]]
    assert not call_of(call).transposed and made.shape[1] == results * phases
    *_, reader = after.nodes
    assert isinstance(reader, Comp) and made.name in reader.reads and len(after.nodes) <= 4
    wide = [a.double() for a in args]
    expected = net(bias, **how)(*wide)
    for graph in (before, after):
        (found,) = run_graph(graph, wide)
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


def test_what_the_reader_reads_beside(any_price):
    """A residual, and something of channels."""
    torch.manual_seed(0)

    def run(x, w, r, s):
        return torch.relu(F.conv_transpose2d(x, w, stride=2, padding=1) * s[:, None, None] + r)

    shapes = (2, 8, 6, 7), (8, 16, 4, 4), (2, 16, 12, 14), (16,)
    args = [torch.randn(n, dtype=torch.bfloat16) for n in shapes]
    _, after = changed(run, args)
    wide = [a.double() for a in args]
    (found,) = run_graph(after, wide)
    torch.testing.assert_close(found, run(*wide), rtol=1e-9, atol=1e-9)


def beside(x, w, r):
    return torch.cat((F.conv_transpose2d(torch.tanh(x), w, stride=2, padding=1), r.exp()), 1)


def behind(x, w, r):
    return torch.cat((r.exp(), F.conv_transpose2d(torch.tanh(x), w, stride=2, padding=1)), 1)


def between(x, w, r):
    y = F.conv_transpose2d(torch.tanh(x), w, stride=2, padding=1)
    return torch.cat((r[:, :3], torch.relu(y), r[:, 3:]), 1)


def padded(x, w, r):
    return F.pad(F.conv_transpose2d(torch.tanh(x), w, stride=2, padding=1), (1, 2, 0, 3), value=7.0)


def part_of(x, w, r):
    y = F.conv_transpose2d(torch.tanh(x), w, stride=2, padding=1)
    return torch.relu(y[:, :5] + r[:, :5])


def later_part(x, w, r):
    return F.conv_transpose2d(torch.tanh(x), w, stride=2, padding=1)[:, 5:, 3:].exp()


@pytest.mark.parametrize("function", [beside, behind, between, padded, part_of, later_part])
def test_readers_of_more_and_of_less_than_the_results(any_price, function):
    """A concatenation goes over the channels of others, too: all of it is written."""
    torch.manual_seed(0)
    shapes = (2, 8, 6, 7), (8, 16, 4, 4), (2, 16, 12, 14)
    args = [torch.randn(n, dtype=torch.bfloat16) for n in shapes]
    _, after = changed(function, args)
    (call,) = (n for n in after.nodes if isinstance(n, Extern))
    assert not call_of(call).transposed
    wide = [a.double() for a in args]
    (found,) = run_graph(after, wide)
    torch.testing.assert_close(found, function(*wide), rtol=1e-9, atol=1e-9)


def test_nothing_is_read_at_computed_places_outside(any_price):
    """Results that are cut off are computed, and what is added to them would lie elsewhere."""
    torch.manual_seed(0)

    def run(x, w, rows):
        y = F.conv_transpose2d(torch.tanh(x), w, stride=2, padding=1)
        return torch.relu(y + rows[torch.arange(12) % 12][None, None, :, None])

    args = [torch.randn(n, dtype=torch.bfloat16) for n in ((2, 8, 6, 7), (8, 16, 4, 4), (12,))]
    _, after = changed(run, args)
    *_, reader = after.nodes
    places = [i for i in reader.body if isinstance(i, Load) and "turned" not in i.buffer]
    assert sum(i.guard is not None for i in places) == 1
    wide = [a.double() for a in args]
    (found,) = run_graph(after, wide)
    torch.testing.assert_close(found, run(*wide), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("again", [False, True])
def test_results_that_others_read_are_put_in_order(any_price, again):
    """By a copy, which the convolution's kernel is to make."""
    torch.manual_seed(0)

    def run(x, w):
        y = F.conv_transpose2d(torch.tanh(x), w, stride=2, padding=1)
        return y.softmax(1) if again else y.exp().mean((2, 3))

    args = [torch.randn(n, dtype=torch.bfloat16) for n in ((2, 8, 6, 7), (8, 16, 4, 4))]
    _, after = changed(run, args)
    (call,) = (n for n in after.nodes if isinstance(n, Extern))
    copies = [n for n in after.nodes if isinstance(n, Comp) and call.outputs[0] in n.reads]
    assert len(copies) == 1 and copies[0].stores[0].guard is not None
    assert len([i for i in copies[0].body if isinstance(i, Load)]) == 1
    wide = [a.double() for a in args]
    (found,) = run_graph(after, wide)
    torch.testing.assert_close(found, run(*wide), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("image", "weight", "how"), [
    ((2, 8, 9, 7), (8, 16, 3, 3), dict(padding=3)),  # a convolution of a part of the image
    ((2, 8, 9, 7), (8, 16, 3, 3), dict(stride=2, dilation=2)),
], ids=str)  # fmt: skip
def test_others_stay(image, weight, how, any_price):
    args = [torch.randn(n, dtype=torch.bfloat16) for n in (image, weight)]
    before, after = changed(net(**how), args)
    assert before == after


@pytest.mark.parametrize("how", [dict(numerics="eager"), dict(fuse=False)], ids=str)
def test_options_that_keep_the_call(how, any_price):
    args = [torch.randn(n, dtype=torch.bfloat16) for n in ((2, 8, 6, 7), (8, 16, 4, 4))]
    before, after = changed(net(stride=2, padding=1), args, **how)
    assert before == after


def planned(function, image, weight, dtype=torch.bfloat16, device="H100") -> Plan:
    x, w = (torch.empty(s, dtype=dtype, device="meta") for s in (image, weight))
    return plan_graph(captured(function, x, w), DEFAULT, named_target(device))[1]


def in_channels_last(x, w):
    y = F.conv_transpose2d(torch.tanh(x), w, stride=2, padding=1)
    return torch.relu(y).to(memory_format=torch.channels_last)


def test_the_reader_is_in_the_kernel_where_channels_are_innermost():
    made = planned(in_channels_last, (16, 64, 56, 56), (64, 128, 4, 4))
    assert not [n for n in made.graph.nodes if isinstance(n, Extern)]
    assert [c.template for c in made.choices].count("gemm/hopper") == 1
    assert len(made.graph.nodes) == 3  # the image, the weight, the rest


@pytest.mark.parametrize(("dtype", "device"), [
    (torch.float32, "H100"), (torch.bfloat16, "A100")], ids=str)  # fmt: skip
def test_what_stays_the_library_s(dtype, device):
    made = planned(in_channels_last, (16, 64, 56, 56), (64, 128, 4, 4), dtype, device)
    (call,) = (n for n in made.graph.nodes if isinstance(n, Extern))
    assert call_of(call).transposed
