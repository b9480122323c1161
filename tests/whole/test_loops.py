"""Plans of loops over time that are written out: work for each step, not for each pair of them."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.func import functionalize
from torch.fx.experimental.proxy_tensor import make_fx

from torchweld.capture.captured import Captured
from torchweld.core.options import Options
from torchweld.pipeline import finished_plan
from torchweld.plan.chains import absorb
from torchweld.plan.chains import form as chains
from torchweld.plan.products import columns
from torchweld.targets.find import named_target

H100 = named_target("H100")


def recurrent(x, w, v):
    """Each step's state goes to a result of its own."""
    state, seen = x[0, :, : w.shape[0]], []
    for part in x:
        state = F.linear(torch.cat((part, state), 1), w).tanh()
        seen.append(F.linear(state, v))
    return torch.stack(seen)


def captured(steps: int) -> Captured:
    """As many columns as steps: a product's depth could be the stack's length."""
    flat = [torch.randn(steps, 8, 64), torch.randn(steps, 64 + steps), torch.randn(16, steps)]
    trace = make_fx(functionalize(lambda given: [recurrent(*given)]), tracing_mode="fake")
    return Captured(trace(flat), "test", "inference")


@pytest.mark.parametrize("module, name", [(columns, "merge"), (chains, "absorbed")])
def test_no_product_is_merged_into_a_stack_of_more_than_a_kernel_reads(module, name, monkeypatch):
    """Each step's product was merged into the stack of all steps, and refused afterwards: 256 steps
    took 60 s."""
    merged = getattr(module, name)
    longest = []

    def counted(one, other, *more):
        longest.append(max(len(one.reads), len(other.reads)))
        return merged(one, other, *more)

    monkeypatch.setattr(module, name, counted)
    steps = H100.max_buffers + 4
    plan = finished_plan(captured(steps), Options(calibrate="off"), H100)
    assert any(len(n.reads) >= steps for n in plan.graph.nodes)
    assert longest and max(longest) < steps


def test_a_node_is_prepared_once_for_all_that_it_is_offered(monkeypatch):
    built = []
    kept = absorb.prepared.__wrapped__
    monkeypatch.setattr(absorb, "prepared", absorb.once(256)(lambda c: built.append(c) or kept(c)))
    finished_plan(captured(24), Options(calibrate="off"), H100)
    assert len({id(c) for c in built}) == len(built) > 0
