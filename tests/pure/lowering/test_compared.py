"""Values that another kernel computes again and compares are rounded where they are stored."""

from __future__ import annotations

import pytest
import torch
from lowered import capture

from compared_cases import CASES, MANY
from torchweld.core.options import Options
from torchweld.ir.check import check_graph
from torchweld.ir.interpret import run_graph
from torchweld.ir.nodes import Cast, Comp
from torchweld.pipeline import finished_plan
from torchweld.targets.find import named_target

TABLE = named_target("H200")


def marks(graph) -> int:
    """Conversions of a value to the type that it has."""
    comps = [n for n in graph.nodes if isinstance(n, Comp)]
    casts = ((c, i) for c in comps for i in c.body if isinstance(i, Cast))
    return sum(i.must_round and c.body[i.arg].dtype == i.dtype for c, i in casts)


def planned(function, *args):
    return finished_plan(capture(function, *args), Options(), TABLE).graph


@pytest.mark.parametrize("name", ["many nearest", "many likeliest", "sorted"])
def test_what_is_stored_to_choose_from_is_marked_once(name):
    function, shapes = CASES[name]
    args = [torch.rand(shape) for shape in shapes]
    graph = planned(function, *args)
    check_graph(graph)
    assert marks(graph) == 1
    exact = [x.double() for x in args]
    for found, wanted in zip(run_graph(graph, exact), function(*exact), strict=True):
        torch.testing.assert_close(found, wanted)


def test_functions_that_kernels_of_16_bits_compute_coarsely_are_marked():
    def passing(x, y):
        z = 1 / (x + y)
        return (z >= torch.topk(z, MANY).values[..., -1:]).sum(-1)

    args = [torch.rand(shape).bfloat16() for shape in ((8, 1, 5000), (8, 50, 1))]
    assert marks(planned(passing, *args)) == 1


@pytest.mark.parametrize("function", [
    lambda x, y: torch.topk(x * y + x, 3)[0],  # nobody compares
    lambda x, y: (x.topk(3)[0][..., -1:] <= x).float() * y,  # of no product
    lambda x, y: (z := x.cumsum(-1) * y.cumsum(-1) + x) >= z.topk(3)[0][..., -1:],  # read again
    lambda x, y: (x * y + x).relu().softmax(-1),
    lambda x, y: ((x * y + x) > 0.5).float() + x.cumsum(-1),  # a constant
], ids=["chosen", "no product", "from memory", "softmax", "constant"])  # fmt: skip
def test_others_stay(function):
    assert marks(planned(function, torch.rand(5, 700), torch.rand(5, 700))) == 0
