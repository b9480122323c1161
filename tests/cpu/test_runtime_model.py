"""The runtime under a whole model: memory, threads, changed weights, a second process."""

from __future__ import annotations

import copy
import threading
from pathlib import Path

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F

import torchweld
from forked import Forked
from torchweld.core import events
from torchweld.core.options import Options
from torchweld.observe.measure.memory import added_bytes
from torchweld.runtime import build
from torchweld.runtime.memory import POOL


class Layer(nn.Module):
    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.norm, self.last = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (4, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        x = self.norm(x + self.out(y))
        return self.last(x + self.down(F.gelu(self.up(x))))


@pytest.fixture(scope="module")
def pair():
    """(eager, fused), two layers each, the same weights"""
    torch.manual_seed(0)
    eager = nn.Sequential(Layer(), Layer()).eval()
    fused = torchweld.fuse(copy.deepcopy(eager))
    with torch.no_grad():
        fused(torch.randn(4, 64, 64))
    return eager, fused


def close(fused, eager) -> None:
    torch.testing.assert_close(fused, eager, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_results_are_safe_to_keep(pair):
    eager, fused = pair
    inputs = [torch.randn(4, 64, 64) for _ in range(4)]
    outputs = [fused(x) for x in inputs]
    for x, y in zip(inputs, outputs):
        close(y, eager(x))


@torch.no_grad()
def test_peak_memory_is_not_above_eager(pair):
    eager, fused = pair
    x = torch.randn(4, 64, 64)
    POOL.release()
    assert added_bytes(lambda: fused(x), "cpu") <= added_bytes(lambda: eager(x), "cpu")


@torch.no_grad()
def test_threads(pair):
    eager, fused = pair
    inputs = [torch.randn(4, 64, 64) for _ in range(3)]
    results: list = [None] * 3

    def work(number: int) -> None:
        with torch.no_grad():  # the mode belongs to the thread
            results[number] = [fused(inputs[number]) for _ in range(10)]

    threads = [threading.Thread(target=work, args=(n,)) for n in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for x, found in zip(inputs, results):
        for y in found:
            close(y, eager(x))


@torch.no_grad()
def test_loaded_weights_are_used(pair):
    eager, fused = pair
    before = copy.deepcopy(eager.state_dict())
    try:
        changed = {k: v * 1.5 for k, v in before.items()}
        eager.load_state_dict(changed)
        fused.load_state_dict(changed)
        x = torch.randn(4, 64, 64)
        close(fused(x), eager(x))
    finally:
        eager.load_state_dict(before)
        fused.load_state_dict(before)


def forbidden(*args):
    raise AssertionError("compiled in a warm process")


def second(tell, folder: Path, warm: bool) -> None:
    """Tells a sum of results and what went otherwise."""
    if warm:
        build._run = forbidden
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32))
    fused = torchweld.fuse(model.eval(), options=Options(cache_dir=folder))
    with torch.no_grad():
        found = fused(torch.ones(4, 16)).double().sum().item()
    tell((found, list(map(str, events.events()))))


def test_a_second_process_compiles_nothing(tmp_path):
    cold = Forked(second, tmp_path, False).rest()
    assert Forked(second, tmp_path, True).rest() == cold == [(cold[0][0], [])]
    assert list(tmp_path.rglob("*.so"))
