"""Which programs may be recorded as CUDA graphs: each refusal, with its reason. No GPU needed."""

from __future__ import annotations

from array import array
from types import SimpleNamespace

import pytest

from torchweld.codegen.source import BufferArg, GridDim, KernelBundle, KernelSource
from torchweld.ir.parser import parse_graph
from torchweld.runtime.launch_table import LaunchTable
from torchweld.runtime.loaded import Loaded
from torchweld.runtime.moved import movable, moved_in
from torchweld.runtime.placement import place
from torchweld.runtime.recordable import why_not_recorded, why_not_worth_it
from torchweld.targets.find import named_target

TEXT = """
graph g {{
  {symbol}
  buffer x : f32[{n}] strides [1] on {device}
  buffer t : f32[{n}] strides [1] on cuda:0
  buffer y : f32[{n}] strides [1] on cuda:0
  input x
  comp k [i:{n}] {{
    %0 = load x[i] : f32
    store t[i] %0
  }}
  extern call {output} = "{target}"(view({argument}, [{n}], [1], 0)) {mutates} {{
  }}
  output view({returned}, [{n}], [1], 0)
}}"""
SOURCE = KernelSource("triton", "k", "", (BufferArg("x"), BufferArg("t")), (GridDim(1),))
BUNDLES = {"k": KernelBundle("k", (SOURCE,))}
H100 = named_target("H100")


def loaded(
    n="1024", symbol="", device="cuda:0", target="aten.relu.default", output="y", argument="t",
    mutates="", compiled=True, static=frozenset(), returned="y", bundles=BUNDLES,
):  # fmt: skip
    graph = parse_graph(
        TEXT.format(
            n=n, symbol=symbol, device=device, target=target, output=output, argument=argument,
            mutates=mutates, returned=returned,
        )
    )  # fmt: skip
    functions = {SOURCE: None} if compiled else {}
    return Loaded(graph, bundles, place(graph, bundles, ()), functions, {}, None, static)


def test_a_small_static_program_on_one_gpu_is_recorded():
    assert why_not_recorded(loaded(), "inference", H100) is None
    assert why_not_recorded(loaded(), "forward", H100) is None
    assert why_not_recorded(loaded(n=str(10**9)), "backward", H100) is None


@pytest.mark.parametrize(
    "program, kind, reason",
    [
        (loaded(n="s0", symbol='symbol s0 = ["size", 0, 0] hint 8'), "forward", "sizes vary"),
        (loaded(device="cpu"), "inference", "not all of it is on one GPU"),
        (loaded(device="cuda:1"), "inference", "not all of it is on one GPU"),
        (loaded(target="aten.nonzero.default"), "inference", "waits for the GPU"),
        (loaded(target="aten._linalg_check_errors.default"), "inference", "waits for the GPU"),
        (loaded(compiled=False), "inference", "not compiled"),
        (loaded(mutates="mutates x"), "inference", "changes its input x"),
        (loaded(n=str(10**9)), "inference", "copying inputs"),
        (loaded(n="0"), "inference", "it has no results"),
        (loaded(n=str(10**8)), "forward", "a recording saves"),
    ],
)
def test_refusals(program, kind, reason):
    assert reason in why_not_recorded(program, kind, H100)


def test_varying_sizes_are_judged_when_they_come():
    program = loaded(n="s0", symbol='symbol s0 = ["size", 0, 0] hint 1000000000')
    assert why_not_recorded(program, "inference", H100) is None
    assert why_not_worth_it(program, {"s0": 1000}, H100) is None
    assert "no results" in why_not_worth_it(program, {"s0": 0}, H100)
    assert "copying inputs" in why_not_worth_it(program, {"s0": 10**9}, H100)


def test_a_changed_input_whose_storage_is_fixed_may_be_recorded():
    program = loaded(mutates="mutates x", static=frozenset({"x"}))
    assert why_not_recorded(program, "inference", H100) is None


@pytest.mark.parametrize(
    "program, names",
    [
        (loaded(), {"x"}),  # y is made by a library
        (loaded(argument="x", returned="t"), {"t"}),  # which reads x
        (loaded(returned="t"), {"x"}),
        (loaded(static=frozenset({"x"})), set()),
        (loaded(compiled=False), set()),
        (loaded(bundles={"k": KernelBundle("k", (SOURCE,), prefill=(("t", "x"),))}), set()),
        (loaded(argument="x", returned="t",
                bundles={"k": KernelBundle("k", (SOURCE,), prefill=(("t", 0),))}), set()),
        (loaded(n=str(1 << 26), argument="x", returned="t"), set()),  # after the recorded part
    ],
)  # fmt: skip
def test_what_kernels_alone_touch_is_not_copied(program, names):
    assert movable(program, {}) == names


@pytest.mark.parametrize("nodes, inputs, kernels", [((7, 8), {0: 1}, (64, 7)), ((0, 8), {}, ()),
                                                    ((7, 0), {0: 1}, (64, 7))])  # fmt: skip
def test_what_is_read_by_a_kernel_that_was_not_found_is_copied(nodes, inputs, kernels):
    """Slot 1 is that of x; the second launch takes no address from there."""
    plans = tuple(SimpleNamespace(moving=((0, slot, 0),)) for slot in (1, 2))
    table = LaunchTable(plans, array("q", [0]), ())
    shaped = SimpleNamespace(sizes={}, keep_alive=(table,))
    native = SimpleNamespace(find=lambda *told: [64, nodes[0], 80, nodes[1]])
    paused = SimpleNamespace(shaped=shaped, bases=array("q", [0, 0]))
    program = loaded()
    assert program.placement.slots["x"] == 1
    found = moved_in(5, program, paused, ((0,), ()), native, H100)
    assert (found.inputs, found.kernels) == (inputs, kernels)


@pytest.mark.parametrize(
    "n, launches, moves",
    [(1024, 7, True), (1024, 8, False), (1 << 20, 8, True), (1 << 20, 30, False)],
)
def test_what_many_kernels_read_is_copied_unless_it_is_large(n, launches, moves):
    table = LaunchTable((SimpleNamespace(moving=((0, 1, 0),)),) * launches, array("q", [0]), ())
    shaped = SimpleNamespace(sizes={}, keep_alive=(table,))
    native = SimpleNamespace(find=lambda *told: [*range(1, 2 * launches + 1)])
    paused = SimpleNamespace(shaped=shaped, bases=array("q", [0, 0]))
    found = moved_in(5, loaded(n=str(n)), paused, ((0,), ()), native, H100)
    assert found.inputs == ({0: 1} if moves else {})
    assert len(found.kernels) == 2 * launches * moves
