"""Training steps that are replayed: a stand-in for CUDA graphs on the CPU, which writes what a
replay makes to the memory that its recording took, as a graph does."""

from __future__ import annotations

import ctypes
import threading
from contextlib import contextmanager, nullcontext
from weakref import WeakSet

import pytest
import torch
import torch.nn.functional as F

import torchweld
from torchweld.api import records
from torchweld.runtime import graphs
from torchweld.runtime import load as loading
from torchweld.runtime.graphs import GraphedProgram
from torchweld.runtime.memory import ArenaPool
from torchweld.runtime.program import Program


class Replays:
    """In place of torch.cuda.CUDAGraph. It holds no input, as a graph does not."""

    def __init__(self) -> None:
        self.count = 0

    def record(self, program: Program, arenas, args: list):
        self.program, self.arenas = program, arenas
        self.places = [(_Alias(a) if isinstance(a, torch.Tensor) else a) for a in args]
        paused = Program.run_head.original(program, arenas, list(args))
        placement = program.loaded.placement
        made = [n for n, k in placement.kinds.items() if k in ("output", "extern")]
        slots = [placement.slots[n] for n in made]
        self.memory = [(s, paused.tensors[s]) for s in slots if paused.tensors[s] is not None]
        return paused

    def replay(self) -> None:
        self.count += 1
        args = [p.tensor() if isinstance(p, _Alias) else p for p in self.places]
        again = Program.run_head.original(self.program, self.arenas, args)
        for slot, memory in self.memory:
            memory.copy_(again.tensors[slot])


class _Alias:
    """Memory by its address alone."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._address, self._layout = tensor.data_ptr(), (tensor.shape, tensor.stride())
        self._dtype, self._bytes = tensor.dtype, tensor.untyped_storage().nbytes()
        self._bytes -= tensor.storage_offset() * tensor.itemsize

    def tensor(self) -> torch.Tensor:
        if not self._bytes or 0 in self._layout[0]:
            return torch.empty_strided(*self._layout, dtype=self._dtype)
        raw = (ctypes.c_uint8 * self._bytes).from_address(self._address)
        flat = torch.frombuffer(raw, dtype=self._dtype, count=self._bytes // self._dtype.itemsize)
        return flat.as_strided(*self._layout)


@pytest.fixture
def replayed(monkeypatch):
    """Every graph of a program is "recorded"; the list of recordings."""
    torch.compiler.reset()
    domain = graphs._Domain(threading.RLock(), ArenaPool(), None, [], [], [], WeakSet(), WeakSet())
    monkeypatch.setattr(graphs._Domain, "follow", lambda self, stream: None)
    recordings: list[Replays] = []

    @contextmanager
    def capture(recording, domain, draws, shared):
        recordings.append(recording)
        current.append(recording)
        try:
            yield
        finally:
            current.pop()

    def run_head(self, arenas, args):
        return current[-1].record(self, arenas, args)

    current: list[Replays] = []
    run_head.original = Program.run_head
    monkeypatch.setattr(Program, "run_head", run_head)
    monkeypatch.setattr(graphs, "_capture", capture)
    monkeypatch.setattr(graphs, "_domain", lambda device: domain)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Replays)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: None)
    monkeypatch.setattr(
        loading,
        "with_graph",
        lambda program, kind, wanted, loose: GraphedProgram(program, kind, loose),
    )
    return recordings


class Block(torch.nn.Module):
    def __init__(self, shared: bool = False) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(24)
        self.up, self.down = torch.nn.Linear(24, 48), torch.nn.Linear(48, 24)
        self.a, self.b = (torch.nn.Parameter(torch.randn(24)) for _ in range(2))

    def forward(self, x):
        y = x + self.down(F.gelu(self.up(self.norm(x)))) + (self.a + self.b)
        return y, (y.sin() * y).mean()


def pair():
    torch.manual_seed(0)
    eager = Block()
    return eager, torchweld.fuse(eager)


def gradients(model) -> list[torch.Tensor]:
    return [p.grad.clone() for p in model.parameters()]


def expected(eager, batches) -> list[torch.Tensor]:
    """The sum of the gradients of `batches`, in float64."""
    model = Block().double()
    model.load_state_dict(eager.state_dict())
    for x in batches:
        model(x.double())[1].backward()
    return gradients(model)


def assert_near(found, wanted) -> None:
    for f, w in zip(found, wanted):
        torch.testing.assert_close(f.double(), w, rtol=1e-4, atol=1e-6)


def batch():
    return torch.randn(16, 24)


def replays(recordings) -> int:
    return sum(r.count for r in recordings)


@pytest.mark.parametrize("set_to_none", [True, False])
def test_steps_with_an_optimizer(replayed, set_to_none):
    """Weights change in place, batches are new, the old loss is alive during the next forward."""
    eager, fused = pair()
    optimizer = torch.optim.SGD(fused.parameters(), lr=0.1)
    for _ in range(9):
        x = batch()
        optimizer.zero_grad(set_to_none=set_to_none)
        wanted = expected(eager, [x])
        _, loss = fused(x)
        loss.backward()
        assert_near(gradients(eager), wanted)
        optimizer.step()
    assert replays(replayed) >= 12
    assert len(replayed) == 2


def test_gradients_that_are_accumulated(replayed):
    eager, fused = pair()
    for _ in range(4):
        for p in eager.parameters():
            p.grad = None
        batches = [batch() for _ in range(3)]
        for x in batches:
            fused(x)[1].backward()
        assert_near(gradients(eager), expected(eager, batches))
    assert replays(replayed) > 10


def test_two_forwards_before_a_backward(replayed):
    eager, fused = pair()
    for _ in range(6):
        for p in eager.parameters():
            p.grad = None
        batches = [batch(), batch()]
        losses = [fused(x)[1] for x in batches]
        for loss in losses:
            loss.backward()
        assert_near(gradients(eager), expected(eager, batches))


def test_retained_graphs(replayed):
    eager, fused = pair()
    for _ in range(6):
        for p in eager.parameters():
            p.grad = None
        x, other = batch(), batch()
        loss = fused(x)[1]
        loss.backward(retain_graph=True)
        fused(other)
        loss.backward()
        assert_near(gradients(eager), expected(eager, [x, x]))


def test_kept_outputs_and_gradients_keep_their_values(replayed):
    eager, fused = pair()
    kept = []
    for _ in range(8):
        x = batch()
        for p in eager.parameters():
            p.grad = None
        y, loss = fused(x)
        loss.backward()
        kept.append((x, y, loss, [p.grad for p in eager.parameters()]))
    for x, y, loss, found in kept:
        torch.testing.assert_close((y, loss), eager(x), rtol=1e-4, atol=1e-5)
        assert_near(found, expected(eager, [x]))


def test_a_gradient_given_to_two_parameters_is_not_shared(replayed):
    """a and b have the same gradient; what is done to one's must not reach the other's."""
    eager, fused = pair()
    for _ in range(5):
        for p in eager.parameters():
            p.grad = None
        x = batch()
        fused(x)[1].backward()
        eager.a.grad.mul_(0)
        assert eager.b.grad.abs().max() > 0


def test_two_models_by_turns(replayed):
    pairs = [pair(), pair()]
    for _ in range(6):
        x = batch()
        losses = [fused(x)[1] for _, fused in pairs]
        for (eager, _), loss in zip(pairs, losses):
            for p in eager.parameters():
                p.grad = None
            loss.backward()
        for eager, _ in pairs:
            assert_near(gradients(eager), expected(eager, [x]))
    assert replays(replayed) >= 8


def test_it_gives_up_where_outputs_are_always_in_use(replayed):
    eager, fused = pair()
    kept = []
    for _ in range(40):
        fused(batch())[1].backward()
        kept.append([p.grad for p in eager.parameters()])
        for p in eager.parameters():
            p.grad = None
    told = {r.kind: [e.kind for e in r.events] for r in records(fused)}
    assert told == {"forward": ["graph"], "backward": ["graph", "no_graph"]}


def test_graphs_of_training_share_one_arena(replayed):
    _, fused = pair()
    for _ in range(5):
        fused(batch())[1].backward()
    assert len(replayed) == 2
    assert len({id(arena) for r in replayed for arena in r.arenas}) == 1
