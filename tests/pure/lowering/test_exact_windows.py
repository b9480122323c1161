"""Float32 convolutions become products of matrices that mean the same."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from lowered import capture

from torchweld.capture.lower import lower
from torchweld.core.options import Options
from torchweld.ir.access import addressed
from torchweld.ir.check import check_graph
from torchweld.ir.contraction import contraction_of
from torchweld.ir.interpret import run_graph
from torchweld.ir.nodes import Comp, Extern
from torchweld.passes.table import PASSES, Context
from torchweld.plan import exact_windows as module
from torchweld.plan.decisions import Plan
from torchweld.plan.exact_windows import exact_windows
from torchweld.targets.find import named_target
from torchweld.templates.gemm.choice import choose
from torchweld.templates.gemm.price import Prices
from torchweld.templates.gemm.triton.schedule import supports

H100, A100, V100 = named_target("H100"), named_target("A100"), replace(
    named_target("A100"), capability=(7, 0))  # fmt: skip


def net(convolve, **how):
    return lambda x, w: torch.relu(convolve(x, w, **how))


def case(shape, weight, dtype=torch.float32):
    torch.manual_seed(0)
    return torch.randn(shape, dtype=dtype), torch.randn(weight, dtype=dtype)


CASES = [
    (net(F.conv2d), case((2, 8, 20, 18), (16, 8, 3, 3))),
    (net(F.conv2d, padding=1), case((3, 5, 9, 11), (17, 5, 3, 4))),
    (net(F.conv2d, stride=2, padding=(3, 2)), case((2, 3, 20, 19), (16, 3, 7, 5))),
    (net(F.conv2d, stride=(1, 3), dilation=(2, 1)), case((9, 16, 10, 14), (24, 16, 5, 2))),
    (net(F.conv1d, padding=4), case((2, 6, 61), (16, 6, 10))),
    (net(F.conv3d, padding=(0, 1, 2), stride=(1, 1, 2)), case((1, 4, 6, 8, 9), (16, 4, 3, 3, 3))),
    (net(F.conv_transpose2d), case((2, 8, 9, 11), (8, 16, 3, 3))),
    (net(F.conv_transpose2d, padding=(1, 2), dilation=(1, 2)), case((2, 7, 9, 11), (7, 20, 3, 3))),
    (net(F.conv_transpose3d, padding=1), case((1, 4, 5, 6, 7), (4, 16, 3, 2, 3))),
]


@pytest.fixture
def asked(monkeypatch):
    """cuDNN says that it is exact, and is slow."""
    monkeypatch.setattr(module, "is_exact", lambda node, graph: True)
    monkeypatch.setattr(Prices, "exact_s", lambda self, node: 1.0)


def converted(function, args, table=H100, options=None):
    graph = lower(capture(function, *args), Options()).graph
    after = exact_windows(Plan(graph, ()), table, options or Options(), choose).graph
    check_graph(after)
    return graph, after


@pytest.mark.parametrize(("function", "args"), CASES, ids=lambda _: "")
@pytest.mark.parametrize("table", [H100, A100], ids=lambda t: t.name)
def test_a_product_of_the_same_meaning(function, args, table, asked):
    before, after = converted(function, args, table)
    assert not any(isinstance(n, Extern) for n in after.nodes)
    for one, other in zip(run_graph(after, list(args)), run_graph(before, list(args)), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)
    made = after.nodes[2]
    accesses = addressed(made, after.buffers)
    assert supports(accesses, contraction_of(accesses), table) is None


def test_what_follows_is_made_with_it(asked):
    _, after = converted(*CASES[0])
    assert [type(n) for n in after.nodes] == [Comp] * 3  # two copies, the product with all else


@pytest.mark.parametrize("results, joined", [(16, True), (64, False)])
def test_what_branches_at_many_points_of_a_thread_stays_apart(results, joined, asked):
    args = case((2, 8, 80, 60), (results, 8, 3, 3))
    graph = lower(capture(lambda x, w: F.mish(F.conv2d(x, w)), *args), Options()).graph
    plan = PASSES["plan"].run(Plan(graph, ()), Context(H100, Options()))
    after = exact_windows(plan, H100, Options(), choose).graph
    assert len(after.nodes) == 3 + (not joined)


@pytest.mark.parametrize(("function", "args"), [
    (net(F.conv2d), case((2, 8, 20, 18), (16, 8, 1, 1))),  # a product of matrices anyhow
    (net(F.conv2d, groups=2), case((2, 8, 20, 18), (16, 4, 3, 3))),
    (net(F.conv2d), case((2, 8, 20, 18), (16, 8, 3, 3), torch.bfloat16)),
    (net(F.conv2d), case((2, 8, 20, 18), (16, 8, 3, 3), torch.float64)),
    (net(F.conv_transpose2d, stride=2), case((2, 8, 9, 11), (8, 16, 3, 3))),
    (net(F.conv_transpose2d, padding=3), case((2, 8, 9, 11), (8, 16, 3, 3))),  # cuts the image
    (net(F.conv2d), case((2, 8, 20, 18), (12, 8, 3, 3))),  # too few columns for an instruction
    (net(F.conv2d), case((0, 8, 20, 18), (16, 8, 3, 3))),
], ids=lambda _: "")  # fmt: skip
def test_others_stay(function, args, asked):
    before, after = converted(function, args)
    assert before == after


@pytest.mark.parametrize("table, options", [
    (V100, Options()), (H100, Options(fuse=False)), (H100, Options(numerics="eager")),
], ids=str)  # fmt: skip
def test_where_nothing_changes(table, options, asked):
    before, after = converted(*CASES[0], table, options)
    assert before == after


def test_what_is_made_by_tf32_stays(monkeypatch):
    monkeypatch.setattr(Prices, "exact_s", lambda self, node: 1.0)
    monkeypatch.setattr(module, "is_exact", lambda node, graph: False)
    before, after = converted(*CASES[0])
    assert before == after
