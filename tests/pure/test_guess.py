"""The expected trace as data, and a measured one beside it."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from report_example import LAYERS, example
from torchweld.core.errors import UsageError
from torchweld.observe.predict.named import line_of
from torchweld.observe.record.guess import Expected, Guess, beside, surprises
from torchweld.observe.views.guess import beside_view, show_guess
from torchweld.targets.find import GPUS

EAGER = example().profiles[0]
GUESS = Guess(1, "2026-11-22T09:30:00+00:00", "geglu", "eager", False, "A processor", [
    Expected(k.name, k.kind, k.places, k.phase, k.dtype, k.regime, k.predicted_us, k.bytes, k.flops)
    for k in EAGER.kernels])  # fmt: skip


def shown(view) -> str:
    console = Console(width=100, file=io.StringIO(), no_color=True)
    console.print(view)
    return console.file.getvalue()


def test_it_survives_json():
    assert Guess.from_json(GUESS.to_json()) == GUESS
    with pytest.raises(UsageError, match="not valid JSON"):
        Guess.from_json("{")
    with pytest.raises(UsageError, match="the guess"):
        Guess.from_json('{"schema_version": 1}')


def test_kernels_are_summed_by_what_limits_them():
    memory, compute = sorted(beside(GUESS, EAGER.kernels), key=lambda r: -r.guessed)
    assert (memory.regime, memory.guessed, memory.measured) == ("memory", 3 * LAYERS, 3 * LAYERS)
    assert compute.guessed_us == pytest.approx(110 * LAYERS)
    total = sum(k.measured_us for k in EAGER.kernels)
    assert memory.measured_us + compute.measured_us == pytest.approx(total)
    assert GUESS.us == pytest.approx(memory.guessed_us + compute.guessed_us)


def test_what_one_of_the_two_does_not_have_is_named():
    assert surprises(GUESS, EAGER.kernels) == ([], [])
    fused = example().profiles[1].kernels
    unguessed, absent = surprises(GUESS, fused)
    assert unguessed == ["gelu + mul + native_layer_norm"]
    assert absent == ["gelu", "mul", "native_layer_norm"]
    assert "not guessed: gelu + mul" in shown(beside_view(GUESS, fused))


def test_the_trace_is_in_program_order_with_layers_together():
    console = Console(width=100, file=io.StringIO(), no_color=True)
    show_guess(GUESS, console)
    text = console.file.getvalue()
    names = [line.split()[0] for line in text.splitlines() if line[:1].isalpha()]
    assert names[3:] == ["addmm", "gelu", "mul", "native_layer_norm"]
    assert f"{len(GUESS.kernels)} kernels, 1146 us in all; compute 58%, memory 42%" in text
    assert "nothing was run" in text and "layers.*.up" in text


@pytest.mark.parametrize("name", GPUS)
def test_a_named_gpu_has_limits(name):
    line = line_of(GPUS[name])
    assert line.flops_per_s("bfloat16", True) > line.flops_per_s("float32", True) > 0
    assert line.flops_per_s("float32", True) == line.flops_per_s("float32", False)
    assert line.memory_bytes_per_s < line.cache_bytes_per_s and line.launch_us > 0
