"""Launches through the runtime's C++, recordings of varying sizes, and weights that change."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F

import torchweld
from changed_weights import in_place, loaded, swapped
from threads import in_threads
from torchweld.api import records
from torchweld.runtime import native, steps


class Block(torch.nn.Module):
    def __init__(self, width: int = 256) -> None:
        super().__init__()
        self.norms = torch.nn.ModuleList(torch.nn.LayerNorm(width) for _ in range(2))
        self.ups = torch.nn.ModuleList(torch.nn.Linear(width, 4 * width) for _ in range(2))
        self.downs = torch.nn.ModuleList(torch.nn.Linear(4 * width, width) for _ in range(2))

    def forward(self, x):
        for norm, up, down in zip(self.norms, self.ups, self.downs):
            x = x + down(F.gelu(up(norm(x))))
        return x, x.softmax(-1).cumsum(-1)


@pytest.fixture
def block():
    torch.compiler.reset()
    torch.manual_seed(0)
    return Block().cuda().to(torch.bfloat16).eval()


def batch(rows: int, block) -> torch.Tensor:
    return torch.randn(rows, 256, device="cuda", dtype=block.ups[0].weight.dtype)


def assert_right(block, fused, x) -> tuple:
    found = fused(x)
    exact = copy.deepcopy(block).double()(x.double())
    for value, wanted in zip(found, exact):
        assert (value.double() - wanted).norm() <= 0.02 * wanted.norm()
    return found


def graph_notes(fused) -> list[str]:
    kinds = ("graph", "no_graph")
    return [e.kind for r in records(fused) for e in r.events if e.kind in kinds]


@pytest.fixture
def by_table(monkeypatch):
    """[launched by the table, left to Python] so far."""
    counts, original = [0, 0], steps.launch_all

    def launch_all(table, native, device):
        step = original(table, native, device)
        for plan in table.plans:
            object.__setattr__(plan, "launch", counted(plan.launch))
        def counting(tensors, bases, address):
            counts[0] += len(table.plans)
            step(tensors, bases, address)
        return counting

    def counted(launch):
        def called(*args):
            counts[1] += 1
            launch(*args)
        return called

    monkeypatch.setattr("torchweld.runtime.shape.steps.launch_all", launch_all)
    return counts


def test_the_driver_is_found():
    from torchweld.core.options import Options
    from torchweld.runtime.cache import open_cache

    assert native.with_driver(open_cache(Options())) is not None


@pytest.mark.parametrize("rows", [1, 64, 100, 2048])
def test_kernels_are_launched_by_the_table(block, by_table, rows):
    """Those with TMA descriptors too, on a stream of the user's."""
    fused = torchweld.fuse(block, batch(rows, block), cuda_graphs=False)
    stream = torch.cuda.Stream()
    with torch.no_grad():
        assert_right(block, fused, batch(rows, block))
        with torch.cuda.stream(stream):
            for _ in range(3):
                assert_right(block, fused, batch(rows, block))
    assert by_table[0] > 0 and by_table[1] == 0


def test_addresses_that_are_not_aligned_go_through_python(block, by_table):
    fused = torchweld.fuse(block, batch(64, block), cuda_graphs=False)
    with torch.no_grad():
        for _ in range(2):
            x = torch.empty(64 * 256 + 1, device="cuda", dtype=torch.bfloat16)[1:].view(64, 256)
            x.normal_()
            assert_right(block, fused, x)
    assert by_table[1] > 0


def test_two_threads_without_graphs(block):
    fused = torchweld.fuse(block, batch(64, block), cuda_graphs=False)

    def work():
        with torch.no_grad(), torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(20):
                assert_right(block, fused, batch(64, block))

    in_threads(work)


def test_lengths_by_turns(block):
    fused = torchweld.fuse(block, dynamic=True)
    kept = []
    with torch.no_grad():
        for _ in range(6):
            for rows in (17, 64, 100, 33):
                x = batch(rows, block)
                found = assert_right(block, fused, x)
                kept.append(([t.clone() for t in found], found))
    assert graph_notes(fused) == ["graph"]
    for then, now in kept:
        assert all(torch.equal(a, b) for a, b in zip(then, now))


def rebound(block):
    block.ups[0].weight = torch.nn.Parameter(block.ups[0].weight.detach() * 1.1)


def of_another_type(block):
    block.to(torch.float32 if block.ups[0].weight.dtype == torch.bfloat16 else torch.bfloat16)


@pytest.mark.parametrize("ahead", [True, False])
@pytest.mark.parametrize("change", [in_place, swapped, loaded, rebound, of_another_type])
def test_weights_that_change_between_calls(block, change, ahead):
    fused = torchweld.fuse(block, batch(64, block) if ahead else None)
    with torch.no_grad():
        for _ in range(3):
            for _ in range(4):
                assert_right(block, fused, batch(64, block))
            change(block)
    assert "graph" in graph_notes(fused)


def test_two_models_two_streams_and_threads(block):
    models = [block, copy.deepcopy(block)]
    fused = [torchweld.fuse(m, batch(64, m)) for m in models]

    def work():
        with torch.no_grad(), torch.cuda.stream(torch.cuda.Stream()):
            for call in range(20):
                found = [assert_right(models[call % 2], fused[call % 2], batch(64, block))]
                torch.cuda.current_stream().synchronize()
                del found

    in_threads(work)
