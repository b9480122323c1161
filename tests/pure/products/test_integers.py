"""Products of 8-bit integers with sums in 32 bits, and what scales them, in one kernel of a GPU."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from nets import H100, calls, captured, comps, formed, run

from torchweld.core.options import Options
from torchweld.plan.products.form import form_products
from torchweld.plan.search import plan
from torchweld.targets.find import named_target
from torchweld.templates.gemm.choice import choose


def layer(x, w, rows, columns, bias):
    """As dynamically quantised linear layers end."""
    total = torch._int_mm(x, w.t())
    return F.gelu((total.float() * rows * columns).to(bias.dtype) + bias)


def turned(x, w, rows, columns, bias):
    return (torch._int_mm(x, w).float() * rows * columns).to(bias.dtype) + bias


def alone(x, w, rows, columns, bias):
    return torch._int_mm(x, w.t())


def inputs(rows: int, columns: int, depth: int):
    made = torch.Generator().manual_seed(0)
    x, w = (torch.randint(-128, 128, (n, depth), generator=made).to(torch.int8)
            for n in (rows, columns))  # fmt: skip
    scales = torch.rand(rows, 1, generator=made), torch.rand(columns, generator=made)
    return x, w, *scales, torch.randn(columns, generator=made).bfloat16()


def planned(function, *args, target=H100):
    """With the real templates and prices."""
    before = plan(captured(function, *args), target, Options())
    return form_products(before, target, Options(), choose)


@pytest.mark.parametrize("function", (layer, turned), ids=lambda f: f.__name__)
def test_the_product_joins_what_scales_it(function):
    args = inputs(40, 32, 32)
    _, after = formed(captured(function, *args))
    assert calls(after.graph) == [] and len(comps(after.graph)) == 1
    (found,) = run(after.graph, args, exact=False)
    torch.testing.assert_close(found, function(*args), rtol=2**-7, atol=1e-2)


def test_two_of_one_operand_share_a_kernel():
    def both(x, w, v, rows, columns):
        return [(torch._int_mm(x, m.t()) * rows * columns).bfloat16() for m in (w, v)]

    x, w, rows, columns, _ = inputs(40, 32, 64)
    args = x, w, w.flip(0).contiguous(), rows, columns
    _, after = formed(captured(both, *args))
    assert len(after.graph.nodes) == 1 and len(after.graph.nodes[0].stores) == 2
    for found, eager in zip(run(after.graph, args, exact=False), both(*args)):
        torch.testing.assert_close(found, eager, rtol=2**-7, atol=0)


@pytest.mark.parametrize("target", ["h100", "a100"])
@pytest.mark.parametrize("rows", [40, 4096])
def test_it_is_faster_than_the_call_and_a_pass_over_its_sums(rows: int, target: str):
    args = inputs(rows, 4096, 1024)
    after = planned(layer, *args, target=named_target(target))
    assert calls(after.graph) == []
    (fusion,) = after.fusions
    assert fusion.bytes_after == sum(a.nbytes for a in args) + 2 * rows * 4096


def test_what_stays_a_call():
    assert calls(planned(alone, *inputs(4096, 4096, 1024)).graph) == ["aten._int_mm.default"]
    after = planned(turned, *inputs(1024, 1024, 1024))
    assert calls(after.graph) == ["aten._int_mm.default"]
    assert "not adjacent along the depth" in " ".join(r.evidence for r in after.refusals)
    after = planned(layer, *inputs(64, 64, 1 << 17))
    assert "may pass 32 bits" in " ".join(r.evidence for r in after.refusals)

