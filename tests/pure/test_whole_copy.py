"""Views as buffers of their own: reshaped, sliced, of sizes that symbols name."""

from __future__ import annotations

import pytest
import torch

from torchweld.core import dtypes
from torchweld.ir.interpret import run_graph
from torchweld.ir.nodes import Buffer, Extern, Graph, View
from torchweld.ir.size import symbol
from torchweld.ir.views import contiguous_strides
from torchweld.layout.whole import whole_copy

S = symbol("s0")


def copied(shape, view: View):
    buffer = Buffer("x", shape, dtypes.f32, contiguous_strides(shape), "cpu")
    graph = Graph("g", (), {"x": buffer}, (), ("x",), (buffer.view,))
    found = whole_copy(view, "y", graph, Extern("call", "aten.any", (view,), (), ("z",)))
    if found is None:
        return None
    copy, comp = found
    return Graph("g", (), {"x": buffer, "y": copy}, (comp,), ("x",), (copy.view,))


@pytest.mark.parametrize("shape, size, stride, offset", [
    ((5, 46), (230,), (1,), 0), ((1, 5, 414), (230, 3, 3), (9, 3, 1), 0),
    ((6, 1), (2, 3), (3, 1), 0), ((4, 6), (4, 2), (6, 2), 1),
    ((3,), (4, 1, 1, 3), (0, 3, 3, 1), 0), ((0, 5), (0,), (1,), 0),
])  # fmt: skip
def test_as_torch_has_it(shape, size, stride, offset):
    graph, x = copied(shape, View("x", size, stride, offset)), torch.randn(shape)
    (y,) = run_graph(graph, [x])
    assert torch.equal(y, x.as_strided(size, stride, offset))


@pytest.mark.parametrize("shape, size, made", [
    ((S, 46), (S, 46), True), ((5, S), (5 * S,), True), ((S, 46), (S * 46,), True),
    ((2, 3, 4), (4, 6), False),
])  # fmt: skip
def test_what_is_not_known_to_end_inside_a_dimension_is_not_read_beyond_it(shape, size, made):
    graph = copied(shape, View("x", size, contiguous_strides(size)))
    assert (graph is not None) == made
    if made:
        (comp,) = graph.nodes
        extents = {a.extent for a in comp.axes}
        assert extents <= {S, 5, 46}  # each axis goes along one dimension
