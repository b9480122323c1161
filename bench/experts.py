"""Mixtures of experts and recurrent layers, paired with eager and torch.compile in one process.

python bench/experts.py [--only copied,lstm] [--backward] [--seconds 4] [--tokens 256]

Each way runs once a round, in turn. The table gives the median milliseconds of a call and the
median over rounds of the paired ratios of eager and of torch.compile to torchweld. A backward is
timed with its forward. `first` is the seconds of torchweld's first call, with its compilation.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

import torchweld
from torchweld.observe.measure.paired import time_paired

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
import experts_cases as cases

HIDDEN, INNER, EXPERTS = 256, 512, 8
STEPS, BATCH = 64, 16
UNROLLED = 16  # steps of a loop of cells: each is compiled by itself


class Layer(nn.Module):
    """A recurrent layer between two linear ones."""

    def __init__(self, kind) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(HIDDEN, HIDDEN), nn.Linear(HIDDEN, HIDDEN)
        self.layer = kind(HIDDEN, HIDDEN, batch_first=True)

    def forward(self, x):
        return self.last(self.layer(torch.relu(self.first(x)))[0]).tanh()


def mixtral(form: str) -> nn.Module:
    from transformers.models.mixtral.modeling_mixtral import MixtralConfig, MixtralSparseMoeBlock

    config = MixtralConfig(
        hidden_size=HIDDEN, intermediate_size=INNER, num_local_experts=EXPERTS,
        num_experts_per_tok=2,
    )  # fmt: skip
    config._experts_implementation = form
    model = MixtralSparseMoeBlock(config)
    for p in model.parameters():
        nn.init.normal_(p, std=0.05)
    return model


CASES: dict[str, Callable[[], nn.Module]] = {
    "loop": lambda: cases.FixedLoop(HIDDEN, INNER, EXPERTS),
    "copied": lambda: cases.Copied(HIDDEN, INNER, EXPERTS),
    "batched": lambda: mixtral("batched_mm"),
    "grouped": lambda: mixtral("grouped_mm"),
    "lstm": lambda: Layer(nn.LSTM),
    "gru": lambda: Layer(nn.GRU),
    "lstm_cells": lambda: cases.Cells(nn.LSTMCell, HIDDEN, HIDDEN),
    "gru_cells": lambda: cases.Cells(nn.GRUCell, HIDDEN, HIDDEN),
}


def step(call: Callable, x: torch.Tensor, backward: bool) -> Callable[[], object]:
    def run():
        if not backward:
            with torch.no_grad():
                return call(x)
        y = call(x)
        y.sum().backward()
        return y

    return run


def shape_of(name: str, tokens: int) -> tuple[int, ...]:
    if name.endswith("_cells"):
        return BATCH, UNROLLED, HIDDEN
    if name in ("lstm", "gru"):
        return BATCH, STEPS, HIDDEN
    return (1, tokens, HIDDEN) if name in ("batched", "grouped") else (tokens, HIDDEN)


def measure(name: str, tokens: int, backward: bool, seconds: float) -> str:
    torch.manual_seed(0)
    torch._dynamo.reset()
    model = CASES[name]()
    x = torch.randn(*shape_of(name, tokens))
    ways = {"eager": model, "compile": torch.compile(model), "torchweld": torchweld.fuse(model)}
    steps = {way: step(call, x, backward) for way, call in ways.items()}
    first = {}
    for way, run in list(steps.items()):
        since = time.perf_counter()
        try:
            run()
        except Exception as error:
            print(f"{name}: {way} fails: {type(error).__name__}")
            del steps[way]
        first[way] = time.perf_counter() - since
    timed = time_paired(steps, "cpu", seconds)
    return row(name, timed, first["torchweld"], steps)


def row(name: str, timed, first_s: float, steps) -> str:
    cells = [f"{timed.median_ms(way):.2f}" if way in steps else "-" for way in ORDER]
    ours = timed.times_ms["torchweld"]
    ratios = [
        f"{statistics.median(a / b for a, b in zip(timed.times_ms[way], ours)):.2f}"
        if way in steps else "-"
        for way in ORDER[:2]
    ]
    return f"| {name} | {' | '.join((*cells, *ratios))} | {first_s:.1f} |"


ORDER = ("eager", "compile", "torchweld")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default=",".join(CASES))
    parser.add_argument("--backward", action="store_true")
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--tokens", type=int, default=256)
    given = parser.parse_args()
    print("| case | eager, ms | compile, ms | torchweld, ms | eager / | compile / | first, s |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for name in given.only.split(","):
        print(measure(name, given.tokens, given.backward, given.seconds), flush=True)


if __name__ == "__main__":
    main()
