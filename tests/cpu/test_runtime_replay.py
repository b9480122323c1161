"""Training steps that are replayed, on a stand-in for CUDA graphs (`recorded.py`), launched from
Python and through the runtime's C++."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import torchweld
from recorded import native_with_stand_in, record_on_cpu
from torchweld.api import records


@pytest.fixture(params=["python", "native"])
def replayed(request, monkeypatch, tmp_path_factory):
    """Every graph of a program is "recorded"; the list of recordings."""
    torch.compiler.reset()
    native = None
    if request.param == "native":
        native = native_with_stand_in(tmp_path_factory.getbasetemp())
        assert native is not None
    return record_on_cpu(monkeypatch, native)


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


def test_parameters_that_a_recorded_forward_keeps_are_themselves(replayed):
    """Views of them would be detached in each call, and the backward would not know them again."""
    _, fused = pair()
    for _ in range(6):
        _, loss = fused(batch())
        kept = loss.grad_fn.saved_tensors
        loss.backward()
    assert replays(replayed) > 2
    places = {p.data_ptr(): p for p in fused.parameters()}
    known = [t for t in kept if t.data_ptr() in places]
    assert known and all(t is places[t.data_ptr()] for t in known)
