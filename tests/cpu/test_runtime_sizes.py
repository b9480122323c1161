"""Recordings of a program whose sizes vary, and weights that change between calls, on a stand-in
for CUDA graphs."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F

import torchweld
from changed_weights import assigned, in_place, loaded, swapped
from recorded import native_with_stand_in, record_on_cpu
from threads import in_threads
from torchweld.runtime import graphs


@pytest.fixture(params=["python", "native"])
def replayed(request, monkeypatch, tmp_path_factory):
    """Every graph of a program is "recorded"; the list of recordings."""
    torch.compiler.reset()
    native = None
    if request.param == "native":
        native = native_with_stand_in(tmp_path_factory.getbasetemp())
    monkeypatch.setattr(graphs, "why_not_worth_it", lambda *_: None)
    monkeypatch.setattr(graphs, "target_of", lambda device: None)
    return record_on_cpu(monkeypatch, native)


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = (
            torch.nn.LayerNorm(24), torch.nn.Linear(24, 48), torch.nn.Linear(48, 24),
        )  # fmt: skip
        self.register_buffer("scale", torch.ones(24))

    def forward(self, x, number: float = 1.0):
        y = x + self.down(F.gelu(self.up(self.norm(x)))) * self.scale
        return {"y": y * number, "sum": y.sum(-1), "x": x}


def assert_right(eager, fused, x) -> dict:
    found, exact = fused(x), copy.deepcopy(eager).double()(x.double())
    for name, value in found.items():
        torch.testing.assert_close(value.double(), exact[name], rtol=1e-4, atol=1e-5)
    return found


def replays(recordings) -> list[int]:
    return [r.count for r in recordings]


def varying(**overrides):
    torch.manual_seed(0)
    eager = Block().eval()
    return eager, torchweld.fuse(eager, dynamic=True, **overrides)


def test_each_length_is_recorded_when_it_was_seen_twice(replayed):
    eager, fused = varying()
    with torch.no_grad():
        for call in range(6):
            for rows in (5, 9, 31):
                assert_right(eager, fused, torch.randn(rows, 24))
            assert len(replayed) == (3 if call > 1 else 0)
    assert replays(replayed) == [4, 4, 4]


def test_outputs_of_all_lengths_may_be_kept(replayed):
    eager, fused = varying()
    kept = []
    with torch.no_grad():
        for rows in (4, 7, 4, 7, 4, 7, 7, 4, 4, 7):
            x = torch.randn(rows, 24)
            then = {k: v.clone() for k, v in assert_right(eager, fused, x).items()}
            kept.append((then, fused(x)))
    assert len(replayed) == 2
    for then, now in kept:
        assert all(torch.equal(then[k], now[k]) for k in then)


def test_lengths_that_hardly_come_back_are_not_recorded(replayed):
    _, fused = varying()
    with torch.no_grad():
        for _ in range(3):
            for rows in range(2, 82):  # more than are remembered
                fused(torch.randn(rows, 24))
    assert not replayed


def test_the_pool_is_bounded_and_the_oldest_go(replayed, monkeypatch):
    monkeypatch.setattr(graphs, "_MOST_RECORDED", 2)
    eager, fused = varying()
    with torch.no_grad():
        for rows in (4, 5, 6):
            for _ in range(3):
                assert_right(eager, fused, torch.randn(rows, 24))
        assert len(replayed) == 3
        before = replays(replayed)
        for rows in (5, 6, 4):  # 4 has gone
            assert_right(eager, fused, torch.randn(rows, 24))
    assert replays(replayed) == [before[0], before[1] + 1, before[2] + 1]


def test_what_recordings_hold_is_bounded(replayed, monkeypatch):
    monkeypatch.setattr(graphs, "_MOST_KEPT_BYTES", 1500)
    eager, fused = varying()
    with torch.no_grad():
        for rows in (4, 5, 4):
            for _ in range(4):
                assert_right(eager, fused, torch.randn(rows, 24))
    assert len(replayed) == 3  # of 4 rows twice


def test_more_recordings_must_be_earned(replayed, monkeypatch):
    monkeypatch.setattr(graphs, "_MOST_RECORDED", 1)
    _, fused = varying()
    with torch.no_grad():
        for _ in range(60):
            for rows in (4, 5):
                fused(torch.randn(rows, 24))
    assert len(replayed) <= 8 + sum(replays(replayed)) // 50


def rebind(model):
    model.up.weight = torch.nn.Parameter(model.up.weight.detach() * 1.2)
    model.scale = model.scale * 0.7


def transpose(model):
    model.up.weight.data = model.up.weight.data.t().contiguous().t()


def replace_module(model):
    model.down = torch.nn.Linear(48, 24)


@pytest.mark.parametrize("ahead", [True, False])
@pytest.mark.parametrize(
    "change", [in_place, swapped, loaded, assigned, rebind, transpose, replace_module]
)
def test_weights_that_change_between_calls(replayed, change, ahead):
    torch.manual_seed(0)
    eager = Block().eval()
    fused = torchweld.fuse(eager, torch.randn(6, 24) if ahead else None)
    with torch.no_grad():
        for _ in range(4):
            for _ in range(4):
                assert_right(eager, fused, torch.randn(6, 24))
            change(eager)
    assert sum(replays(replayed)) >= (8 if ahead else 4)


def test_a_type_that_changes_and_changes_back(replayed):
    torch.manual_seed(0)
    eager = Block().eval()
    fused = torchweld.fuse(eager, torch.randn(6, 24))
    with torch.no_grad():
        for dtype in (torch.float32, torch.float64, torch.float32):
            eager.to(dtype)
            for _ in range(3):
                x = torch.randn(6, 24, dtype=dtype)
                assert fused(x)["y"].dtype == dtype
                assert_right(eager, fused, x)


def test_inputs_of_another_layout_and_constants_of_another_value(replayed):
    torch.manual_seed(0)
    eager = Block().eval()
    fused = torchweld.fuse(eager, (torch.randn(6, 24), 1.0))
    with torch.no_grad():
        for x in (torch.randn(6, 24), torch.randn(24, 6).t(), torch.randn(6, 30)[:, :24]):
            for number in (1.0, 2.0):
                for _ in range(3):
                    found = fused(x, number)
                    torch.testing.assert_close(found["y"], eager(x, number)["y"])
                    assert found["x"].data_ptr() == x.data_ptr()


def test_training_flags_and_hooks_are_seen(replayed):
    class Dropped(Block):
        def forward(self, x):
            return F.dropout(super().forward(x)["y"], 0.5, self.training)

    eager = Dropped().eval()
    fused, x = torchweld.fuse(eager, torch.randn(6, 24)), torch.randn(6, 24)
    with torch.no_grad():
        for _ in range(4):
            torch.testing.assert_close(fused(x), eager(x))
        eager.train()
        assert (fused(x) == 0).any()
        eager.eval()
        torch.testing.assert_close(fused(x), eager(x))
        eager.up.register_forward_hook(lambda module, args, output: output * 0)
        torch.testing.assert_close(fused(x), eager(x))


@pytest.mark.parametrize("dynamic", [True, False])
def test_calls_of_any_mode_after_a_recording_in_inference_mode(replayed, dynamic):
    eager = Block().eval()
    fused = torchweld.fuse(eager, None if dynamic else torch.randn(6, 24), dynamic=dynamic)
    for mode in (torch.inference_mode, torch.no_grad, torch.inference_mode):
        with mode():
            for _ in range(4):
                found = fused(x := torch.randn(6, 24))
                torch.testing.assert_close(found["y"], eager(x)["y"], rtol=1e-4, atol=1e-5)
                assert found["y"].is_inference() == torch.is_inference_mode_enabled()
    assert replayed


def test_two_models_by_turns_and_two_threads(replayed):
    torch.manual_seed(0)
    models = [Block().eval() for _ in range(2)]
    fused = [torchweld.fuse(m, torch.randn(6, 24)) for m in models]

    def work():
        with torch.no_grad():
            for call in range(12):
                assert_right(models[call % 2], fused[call % 2], torch.randn(6, 24))

    in_threads(work)
    assert len(replayed) == 2 and sum(replays(replayed)) > 12
