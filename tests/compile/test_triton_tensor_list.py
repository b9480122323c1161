"""Many tensors in one launch, compiled for an H100."""

from __future__ import annotations

import pytest

from torchweld.core.options import Options
from torchweld.ir.check import check_graph
from torchweld.ir.nodes import Comp
from torchweld.ir.parser import parse_graph
from torchweld.passes.side_by_side import MOST_TENSORS, side_by_side
from torchweld.runtime.triton_compile import compile_source, resources
from torchweld.targets.find import named_target
from torchweld.templates.generate import generate_all, kernels_of

pytest.importorskip("triton")


def updates(lengths) -> str:
    """x = x - g * rate[], once for each length."""
    buffers = ["buffer rate : f32[] strides [] on cuda:0"]
    comps, inputs = [], ["rate"]
    for k, n in enumerate(lengths):
        buffers += [f"buffer {b}{k} : f32[{n}] strides [1] on cuda:0" for b in "xg"]
        inputs += [f"x{k}", f"g{k}"]
        comps.append(
            f"comp step{k} [i:{n}] {{\n %0 = load x{k}[i] : f32\n %1 = load g{k}[i] : f32\n"
            f" %2 = load rate[] : f32\n %3 = mul %1 %2 : f32\n %4 = sub %0 %3 : f32\n"
            f" store x{k}[i] %4\n}}"
        )
    lines = [*buffers, f"input {', '.join(inputs)}", *comps, "output "]
    return "graph g {\n" + "\n".join(lines) + "\n}"


def launches(lengths):
    graph = side_by_side(parse_graph(updates(lengths)), Options())
    check_graph(graph)
    bundles = generate_all(kernels_of(graph, named_target("H100")))
    assert all(isinstance(n, Comp) and n.name in bundles for n in graph.nodes)
    return [s for b in bundles.values() for s in b.sources]


def test_one_launch_of_wide_loads():
    (source,) = launches((512, 262144, 1 << 20))
    found = resources(compile_source(source, 90))
    assert len(source.args) == 9
    assert found.wide_loads >= 2 and found.wide_stores >= 1 and found.spill_bytes == 0


def test_odd_lengths_have_a_launch_of_their_own():
    one, other = launches((512, 33, 1024, 7))
    assert {len(one.args), len(other.args)} == {6}
    for source in (one, other):
        assert resources(compile_source(source, 90)).spill_bytes == 0


def test_a_launch_has_no_more_tensors_than_it_can_be_given():
    sources = launches([256] * 200)
    assert len(sources) == 3 and max(len(s.args) for s in sources) <= MOST_TENSORS
    compile_source(sources[0], 90)
