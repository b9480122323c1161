"""Padded rows, run: plans as for a GPU, kernels of the CPU, against eager."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

import torchweld
from torchweld import pipeline
from torchweld.layout.extents import align_extents
from torchweld.layout.rows import align_rows
from torchweld.passes.table import PASSES
from torchweld.runtime.externs import _OUT_FORMS as OUT_FORMS
from torchweld.runtime.externs import out_form
from torchweld.targets.find import named_target, target_of


class Loss(nn.Module):
    def __init__(self, returns_logits: bool) -> None:
        super().__init__()
        self.head = nn.Linear(48, 101, bias=False)
        self.returns_logits = returns_logits

    def forward(self, x, target):
        logits = self.head(torch.tanh(x))
        loss = nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1).float(), target)
        return (loss, logits) if self.returns_logits else (loss,)


@pytest.fixture
def padded(monkeypatch, tmp_path) -> list[str]:
    """Names of buffers whose rows were set apart."""
    found: list[str] = []

    def align(plan, context):
        result = align_rows(plan.graph, named_target("H100"), context.loose_outputs)
        found.extend(n for n, b in result.buffers.items() if b != plan.graph.buffers.get(n))
        return replace(plan, graph=result)

    def extend(plan, context):
        fast = replace(named_target("H100"), dram_bytes_per_s=1e30, launch_s=0.0)  # copies are free
        return replace(plan, graph=align_extents(plan.graph, fast))

    for name, run in (("align rows", align), ("align extents", extend)):
        monkeypatch.setitem(PASSES, name, replace(PASSES[name], run=run))
    cpu = target_of("cpu")
    names = (*cpu.passes, "align rows", "align extents")
    monkeypatch.setattr(pipeline, "target_of", lambda device: replace(cpu, passes=names))
    monkeypatch.setenv("TORCHWELD_CACHE_DIR", str(tmp_path))
    return found


@pytest.mark.parametrize("returns_logits", [False, True])
def test_training_with_padded_logits(padded, returns_logits):
    torch.manual_seed(0)
    model = Loss(returns_logits).to(torch.bfloat16)
    x = torch.randn(2, 7, 48, dtype=torch.bfloat16, requires_grad=True)
    target = torch.randint(101, (12,))
    fused = torchweld.fuse(model)
    results = []
    for call in (model, fused):
        loss, *logits = call(x, target)
        loss.backward()
        results.append([loss.detach(), x.grad, model.head.weight.grad, *logits])
        x.grad = model.head.weight.grad = None
    for eager, ours in zip(*results):
        torch.testing.assert_close(ours, eager, rtol=2e-2, atol=1e-3)
        assert ours.stride() == eager.stride()
    assert len(padded) == (1 if returns_logits else 2)
    events = [e for record in torchweld.api.records(fused) for e in record.events]
    assert not [e for e in events if e.kind.startswith("copied")]
    made = {n.name for record in torchweld.api.records(fused) for n in record.graph.nodes}
    assert "mm_2_rest" in made and ("copy_mm_weight" in made) != returns_logits


@pytest.mark.parametrize("target", sorted(OUT_FORMS))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_calls_write_into_rows_that_are_apart(target, dtype):
    torch.manual_seed(0)
    batch = (3,) if "bmm" in target else ()
    a, b = (torch.randn(*batch, m, n, dtype=dtype) for m, n in ((5, 33), (33, 101)))
    extra = [torch.randn(*batch, 5, 101, dtype=dtype)] if "add" in target else []
    apart = torch.full((*batch, 5, 104), 7.0, dtype=dtype)
    out_form(target)(*extra, a, b, out=apart[..., :101])
    expected = a.double() @ b.double() + (extra[0].double() if extra else 0)
    torch.testing.assert_close(apart[..., :101].double(), expected, rtol=2e-2, atol=2e-2)
    assert (apart[..., 101:] == 7).all()
