"""Stacks whose parts share their work are made at once."""

from __future__ import annotations

import pytest
import torch
from products.nets import captured, on

from torchweld.core.options import Options
from torchweld.ir.check import check_graph
from torchweld.ir.interpret import run_graph
from torchweld.ir.nodes import Comp, Index, Load, Reduce, needed
from torchweld.ir.parser import parse_graph
from torchweld.passes.stacks import stacks_at_once
from torchweld.passes.table import PASSES, Context
from torchweld.plan.decisions import Plan
from torchweld.targets.find import named_target, target_of

H100, CPU = named_target("H100"), target_of("cpu")


def recurrence(x, rate):
    state, seen = torch.zeros_like(x[:, 0]), []
    for step in range(x.shape[1]):
        state = torch.sigmoid(rate) * state + x[:, step]
        seen.append(state * rate)
    return torch.stack(seen, 1)


def innermost(x, rate):
    return torch.stack([x[:, step].exp() * rate for step in range(3)], -1)


def turned(u, v):
    """Points about axes, with a sum of components, and a length."""
    w = (u * v).sum(-1, keepdim=True)
    t = 2 * torch.linalg.cross(u, v)
    return v + w * t + torch.linalg.cross(torch.linalg.cross(t, u) * w.exp(), t)


def planned(function, *shapes, target=H100):
    torch.manual_seed(0)
    args = [torch.randn(shape) for shape in shapes]
    made = Plan(on(captured(function, *args), "cuda:0" if target is H100 else "cpu"), ())
    for name in target.passes:
        before, made = made, PASSES[name].run(made, Context(target, Options()))
        if made.graph is not before.graph:
            check_graph(made.graph)
    (result,) = run_graph(on(made.graph, "cpu"), list(args))
    exact = function(*(a.double() for a in args))
    torch.testing.assert_close(result.double(), exact, rtol=1e-6, atol=1e-6)
    return [n for n in made.graph.nodes if isinstance(n, Comp)]


@pytest.mark.parametrize("target", [H100, CPU], ids=["H100", "CPU"])
@pytest.mark.parametrize("steps", [2, 7, 12])
def test_the_steps_of_a_recurrence_are_made_at_one_point(steps, target):
    *_, comp = planned(recurrence, (5, steps, 33), (33,), target=target)
    assert len(comp.stores) == steps and len(comp.axes) == 2


def beside_steps(x, rate):
    return recurrence(x, rate) + x


@pytest.mark.parametrize(("target", "parts"), [(H100, 1), (CPU, 5)], ids=["H100", "CPU"])
def test_what_is_added_to_a_stack_is_read_place_by_place_on_a_cpu(target, parts):
    *_, comp = planned(beside_steps, (40, 5, 33), (33,), target=target)
    assert len(comp.stores) == parts


def spread_of_steps(x, rate):
    seen = recurrence(x, rate)
    return ((seen - seen.mean()) * seen.std()).sum()


@pytest.mark.parametrize(("rows", "steps", "joined"), [(50, 16, False), (5000, 12, True)])
def test_a_reduction_of_costly_steps_reads_them_from_memory(rows, steps, joined):
    """Where the plan has `joined` both, they are taken apart again."""
    stack, *rest = planned(spread_of_steps, (rows, steps, 33), (33,))
    assert len(stack.stores) == steps and stack.name.endswith("steps") == joined
    assert not any(isinstance(i, Index) for comp in rest for i in comp.body)


def test_a_reduction_of_cheap_steps_makes_them():
    comps = planned(lambda x, rate: torch.stack([x[:, 0] + rate, x[:, 1]], 1).sum((1, 2)),
                    (50, 2, 33), (33,))  # fmt: skip
    assert [len(c.stores) for c in comps] == [1]


def test_what_is_contiguous_along_the_stack_stays_a_choice():
    (comp,) = planned(innermost, (4000, 3, 33), (33,))
    assert len(comp.stores) == 1


@pytest.mark.parametrize("target", [H100, CPU], ids=["H100", "CPU"])
@pytest.mark.parametrize("shape", [(4001, 3), (7, 143, 3)])
def test_components_of_a_vector_are_made_by_one_thread(shape, target):
    *_, comp = planned(turned, shape, shape, target=target)
    assert len(comp.stores) == 3 and len(comp.axes) == len(shape) - 1
    assert not any(isinstance(i, Reduce) for i in comp.body)
    assert sum(isinstance(i, Load) for i in comp.body) == 6


def test_little_work_on_a_vector_stays_a_choice():
    (comp,) = planned(torch.linalg.cross, (4001, 3), (4001, 3))
    assert len(comp.stores) == 1


def test_what_is_read_at_computed_places_is_left_alone():
    graph = parse_graph("""graph g {
  buffer x : f32[50, 4] strides [4, 1] on cpu
  buffer at : i64[50] strides [1] on cpu
  buffer z : f32[50] strides [1] on cpu
  input x, at
  comp z [k:4, i:50] {
    %0 = index k : i64
    %1 = const 2 : i64
    %2 = lt %0 %1 : b1
    %3 = load at[i] : i64
    %4 = load x[%3, 0] : f32
    %5 = exp %4 : f32
    %6 = where %2 %4 %5 : f32
    %7 = reduce.sum[k] %6 : f32
    store z[i] %7
  }
  output view(z, [50], [1], 0)
}""")
    check_graph(graph)
    assert stacks_at_once(graph).nodes == graph.nodes


def filtered(x):
    """Each step needs two before it, and is computed once."""
    y1 = y2 = torch.zeros_like(x[:, 0])
    seen = []
    for step in range(x.shape[1]):
        y1, y2 = x[:, step] + 0.3 * y1 - 0.1 * y2, y1
        seen.append(y1)
    return torch.stack(seen, 1)


def mixed(x, weight):
    """A product is between two steps."""
    state, seen = torch.zeros_like(x[:, 0]), []
    for step in range(x.shape[1]):
        state = torch.tanh(x[:, step] + state @ weight)
        seen.append(state)
    return torch.stack(seen, 1)


@pytest.mark.parametrize("shape", [(200, 12), (5, 12, 40), (3, 12, 4, 5)])
def test_a_stack_and_its_steps_are_one_kernel_along_any_axis(shape):
    (comp,) = planned(filtered, shape, target=CPU)
    assert len(comp.stores) == 12 and len(comp.body) < 12 * 12


def both(x):
    y = filtered(x)
    return torch.cat([y, y.square().mean(1, keepdim=True)], 1)


def test_a_stack_that_others_read_is_still_stored():
    *_, comp = planned(both, (200, 12), target=CPU)
    assert comp.stores


def test_steps_with_products_between_them_stay_apart():
    made = Plan(on(captured(mixed, torch.randn(6, 5, 8), torch.randn(8, 8)), "cpu"), ())
    for name in CPU.passes[: CPU.passes.index("steps")]:
        made = PASSES[name].run(made, Context(CPU, Options()))
    assert PASSES["steps"].run(made, Context(CPU, Options())).graph is made.graph


@pytest.mark.parametrize(("parts", "inlined"), [(2, True), (9, False)])
def test_parts_of_a_long_stack_are_read_from_memory_at_computed_places(parts, inlined):
    """A kernel would ask for every part at each point."""
    order = torch.arange(parts).flip(0)

    def bounced(x, rate):
        seen = torch.stack([torch.roll(x[k], k, 0) for k in range(parts)])
        return seen[(rate * 0).long() + order.view(-1, 1, 1)] * seen.sum(0)

    args = torch.randn(parts, 769, 1021), torch.randn(1)
    made = Plan(on(captured(bounced, *args), "cuda:0"), ())
    for name in H100.passes:
        made = PASSES[name].run(made, Context(H100, Options()))
    chosen = 0
    for comp in (n for n in made.graph.nodes if isinstance(n, Comp)):
        loads = [i for i in comp.body if isinstance(i, Load) and i.guard is not None]
        behind = (needed(comp.body, (load.guard,)) for load in loads)
        chosen += sum(any(isinstance(comp.body[v], Load) for v in values) for values in behind)
    assert (chosen > 0) == inlined
