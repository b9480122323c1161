"""Which Comps run as convolutions, and that those made of library calls mean what the calls do."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from torchweld.core import dtypes
from torchweld.ir.interpret import run_comp
from torchweld.ir.nodes import Buffer, Comp, Extern, Graph
from torchweld.ir.parser import parse_graph
from torchweld.plan import convolutions
from torchweld.targets.find import target_of
from torchweld.targets.rates import favouring_convolutions
from torchweld.templates.conv.cpu.schedule import cpu_convolution

OWN = replace(
    target_of("cpu"), features=("avx2", "avx512"), rates=favouring_convolutions("own")
)

CALL = """
graph one {{
  buffer x : f32[{n}, 3, 9, 8] strides [216, 72, 8, 1] on cpu
  buffer w : f32[8, 3, {k}, 2] strides [{row}, {taps}, 2, 1] on cpu
  buffer y : f32[{n}, 8, {h}, {wide}] strides [{area8}, {area}, {wide}, 1] on cpu
  input x, w
  extern call y = "aten.convolution.default"(view(x, [{n}, 3, 9, 8], [216, 72, 8, 1], 0), \
view(w, [8, 3, {k}, 2], [{row}, {taps}, 2, 1], 0), None, {stride}, {padding}, {dilation}, False, \
[0, 0], 1) {{
  }}
  output view(y, [{n}, 8, {h}, {wide}], [{area8}, {area}, {wide}, 1], 0)
}}"""


def _call(n=2, k=3, stride=(1, 1), padding=(0, 0), dilation=(1, 1)):
    h, wide = (
        (s + 2 * p - d * (t - 1) - 1) // step + 1
        for s, t, step, p, d in zip((9, 8), (k, 2), stride, padding, dilation)
    )
    how = dict(stride=list(stride), padding=list(padding), dilation=list(dilation))
    text = CALL.format(
        n=n, k=k, row=6 * k, taps=2 * k, h=h, wide=wide, area=h * wide, area8=8 * h * wide, **how
    )
    return parse_graph(text), how


TRANSPOSED = """
graph one {{
  buffer x : f32[2, 3, 4, 5] strides [60, 20, 5, 1] on cpu
  buffer w : f32[3, 6, 3, 2] strides [36, 6, 2, 1] on cpu
  buffer y : f32[2, 6, {h}, {wide}] strides [{area6}, {area}, {wide}, 1] on cpu
  input x, w
  extern call y = "aten.convolution.default"(view(x, [2, 3, 4, 5], [60, 20, 5, 1], 0), \
view(w, [3, 6, 3, 2], [36, 6, 2, 1], 0), None, {stride}, {padding}, {dilation}, True, {more}, 1) {{
  }}
  output view(y, [2, 6, {h}, {wide}], [{area6}, {area}, {wide}, 1], 0)
}}"""


def _transposed(stride=(1, 1), padding=(0, 0), dilation=(1, 1), more=(0, 0)):
    numbers = zip((4, 5), (3, 2), stride, padding, dilation, more)
    h, wide = ((s - 1) * step - 2 * p + d * (t - 1) + 1 + o for s, t, step, p, d, o in numbers)
    how = dict(stride=list(stride), padding=list(padding), dilation=list(dilation))
    text = TRANSPOSED.format(
        h=h, wide=wide, area=h * wide, area6=6 * h * wide, more=list(more), **how
    )
    return parse_graph(text), how | dict(output_padding=more)


def _comp(graph) -> Comp:
    (node,) = graph.nodes
    comp = convolutions._convolution_comp(node, graph, OWN)
    assert comp is not None
    return comp


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize(
    "how",
    [
        {},
        dict(k=1),
        dict(padding=(1, 0)),
        dict(stride=(2, 3), padding=(2, 1)),
        dict(dilation=(3, 2), padding=(3, 3)),
    ],
)
def test_the_comp_means_the_call(n, how):
    graph, how = _call(n, **how)
    x, w = torch.randn(n, 3, 9, 8), torch.randn(graph.buffers["w"].shape)
    y = torch.empty(graph.buffers["y"].shape)
    run_comp(_comp(graph), dict(x=x, w=w), graph.buffers, {}, into=dict(y=y))
    torch.testing.assert_close(y, F.conv2d(x, w, **how))


@pytest.mark.parametrize(
    "how",
    [
        {},
        dict(stride=(2, 3), padding=(1, 0), more=(1, 2)),
        dict(stride=(3, 1), dilation=(2, 2), padding=(2, 1)),
    ],
)
def test_transposed_the_comp_means_the_call(how):
    graph, how = _transposed(**how)
    x, w = torch.randn(2, 3, 4, 5), torch.randn(3, 6, 3, 2)
    y = torch.empty(graph.buffers["y"].shape)
    run_comp(_comp(graph), dict(x=x, w=w), graph.buffers, {}, into=dict(y=y))
    torch.testing.assert_close(y, F.conv_transpose2d(x, w, **how))


@pytest.mark.parametrize(
    "old, new",
    [
        ("= eq %", "= ne %"),
        ("floor_div %", "trunc_div %"),
        ("const 2 : i64", "const 3 : i64"),
        ("load w[c, o, i, j]", "load w[o, c, i, j]"),
    ],
)
def test_what_is_no_transposed_convolution(old, new):
    graph, _ = _transposed(stride=(2, 2), padding=(1, 1))
    comp = _comp(graph)
    assert cpu_convolution(comp, graph.buffers).transposed
    changed = _changed(comp, old, new, graph)
    assert changed != comp
    assert cpu_convolution(changed, graph.buffers) is None


def _changed(comp: Comp, old: str, new: str, graph) -> Comp:
    """`comp` with its text changed."""
    from torchweld.ir.printer import text

    graph = parse_graph(text(replace(graph, nodes=(comp,))).replace(old, new))
    return graph.nodes[0]


@pytest.mark.parametrize(
    "old, new",
    [
        (" exact : f32", " : f32"),
        ("ge %1 %0", "gt %1 %0"),
        ("index 9 ", "index 10 "),
        ("else 0.0", "else 1.0"),
        ("mul %", "add %"),
        ("reduce.sum[", "reduce.max["),
    ],
    ids=["no mark", "one row less", "one row more", "ones outside", "sums", "maximum"],
)
def test_what_is_no_convolution(old, new):
    graph, _ = _call(padding=(1, 1))
    comp = _comp(graph)
    assert cpu_convolution(comp, graph.buffers) is not None
    changed = _changed(comp, old, new, graph)
    assert changed != comp
    assert cpu_convolution(changed, graph.buffers) is None


def test_windows_need_not_be_guarded_where_they_stay_inside():
    graph, _ = _call()
    assert not any(getattr(i, "guard", None) for i in _comp(graph).body)
    assert cpu_convolution(_comp(graph), graph.buffers) is not None


@pytest.mark.parametrize(
    "name, strides",
    [("x", (216, 1, 24, 3)), ("w", (18, 1, 6, 3))],
)
def test_other_layouts_are_no_convolutions(name, strides):
    graph, _ = _call()
    buffers = {**graph.buffers, name: replace(graph.buffers[name], strides=strides)}
    assert cpu_convolution(_comp(graph), buffers) is None


def _convolution(x, w, step: int = 1) -> tuple[Extern, Graph]:
    made = ((n - k) // step + 1 for n, k in zip(x[2:], w[2:]))
    shapes = {"x": x, "w": w, "y": (x[0], w[0], *made)}
    buffers = {n: Buffer(n, s, dtypes.f32, torch.empty(s).stride()) for n, s in shapes.items()}
    numbers = ((step,) * 2, (0, 0), (1, 1), False, (0, 0), 1)
    call = Extern("c", "aten.convolution.default",
                  (buffers["x"].view, buffers["w"].view, None, *numbers), (), ("y",))  # fmt: skip
    return call, Graph("g", (), buffers, (call,), ("x", "w"), (buffers["y"].view,))


@pytest.mark.parametrize("channels, own", [(32, False), (20, True)])
def test_the_rates_of_a_machine_decide(channels, own):
    """A library that is 1.3 times as fast, but for the channels with which it fills vectors up; and
    one that is half as fast."""
    call, graph = _convolution((1, channels, 64, 64), (channels, channels, 5, 5))
    for library, expected in ((1.3, own), (0.5, True)):
        rates = {"channels aten": (library * 6e10,) * 2, "channels own": (6e10,) * 2}
        made = convolutions._convolution_comp(call, graph, replace(OWN, rates=rates, units=1))
        assert isinstance(made, Comp) == expected


@pytest.mark.parametrize("results, own", [(24, False), (64, True)])
def test_loads_in_long_steps_are_shared_by_results(results, own):
    """The rates of a Zen 3: 8 x 8 in steps of 4 to 24 results took us 11 ms, the library 4.5."""
    call, graph = _convolution((305, 3, 64, 64), (results, 3, 8, 8), 4)
    rates = {"channels own": (6e10,) * 2, "steps aten": (6.1e10,) * 2, "steps own": (6.1e10,) * 2}
    target = replace(OWN, features=("avx2",), rates=rates, units=1)
    assert isinstance(convolutions._convolution_comp(call, graph, target), Comp) == own
