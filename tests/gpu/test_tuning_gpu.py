"""Products measured on a GPU: what is found serves other models, and too little memory costs speed
alone."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import torchweld
from torchweld import tuning
from torchweld.api import records
from torchweld.core import events
from torchweld.ir.nodes import Comp, Reduce

ROWS, D, HIDDEN = 2048, 512, 1024


class Layer(nn.Module):
    def __init__(self, before=lambda x: x) -> None:
        super().__init__()
        self.up, self.down, self.before = nn.Linear(D, HIDDEN), nn.Linear(HIDDEN, D), before

    def forward(self, x):
        return self.down(F.relu(self.up(self.before(x))))


def made(before=lambda x: x):
    torch.manual_seed(0)
    return Layer(before).to("cuda", torch.bfloat16).eval()


def tuned(model, x, cache):
    with torch.no_grad():
        fused = torchweld.fuse(model, x, tune_seconds=300.0, cache_dir=cache)
        wanted = copy.deepcopy(model).double()(x.double())
        assert (fused(x).double() - wanted).norm() <= 0.01 * wanted.norm()
    nodes = [n for record in records(fused) for n in record.graph.nodes]
    return [n for n in nodes if isinstance(n, Comp) and any(isinstance(i, Reduce) for i in n.body)]


@pytest.fixture
def x():
    events.clear()
    return torch.randn(ROWS, D, device="cuda", dtype=torch.bfloat16)


def test_what_was_measured_serves_another_model(x, tmp_path, monkeypatch):
    first = tuned(made(), x, tmp_path)
    assert list(tmp_path.rglob("*.measured.json"))
    timed = []
    monkeypatch.setattr(tuning, "graph_seconds", lambda *args: timed.append(args) or 1.0)
    second = tuned(made(torch.sin), x, tmp_path)
    assert not timed and len(second) == len(first)


def test_too_little_memory_leaves_the_defaults(x, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device=None: (1 << 20, 1 << 36))
    tuned(made(), x, tmp_path)
    assert any("out of memory" in event.message for event in events.events())
    assert not list(tmp_path.rglob("*.measured.json"))
