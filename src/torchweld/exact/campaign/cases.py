"""The program that a seed stands for."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as seeded

from torchweld.exact.campaign import (
    attention,
    gated,
    images,
    layers,
    losses,
    modules,
    movement,
    operators,
    parts,
    unread,
    written,
)
from torchweld.exact.campaign.checks import Case
from torchweld.exact.fuzz import programs
from torchweld.exact.programs import Program

_EXAMPLES = 4  # hypothesis begins with the simplest


def drawn(seed: int) -> Program:
    """A program of the fuzzer."""
    found: list[Program] = []

    @seeded(seed)
    @settings(max_examples=_EXAMPLES, database=None, deadline=None, phases=[Phase.generate],
              suppress_health_check=list(HealthCheck))  # fmt: skip
    @given(programs())
    def collect(program: Program) -> None:
        found.append(program)

    collect()
    return found[-1]


KINDS: dict[str, Callable[[int], Case | None]] = {
    "operator": operators.sample,
    "movement": movement.program,
    "random": drawn,
    "module": modules.sample,
    "attention": attention.program,
    "loss": losses.program,
    "layer": layers.program,
    "written": written.program,
    "part": parts.program,
    "unread": unread.program,
    "gated": gated.program,
    "image": images.program,
    "integer": operators.integers,
}
_SHARES = (
    *("operator",) * 5, *("movement",) * 3, *("random",) * 2, "module", *("attention",) * 2, "loss",
    "layer", "written",
)  # fmt: skip
# Others must be asked for: a seed stands for the program that it stood for before they came.
USUAL = tuple(dict.fromkeys(_SHARES))


def kind_of(seed: int, kinds: tuple[str, ...] = USUAL) -> str:
    added = tuple(k for k in kinds if k not in USUAL)
    return Random(seed).choice([k for k in _SHARES + added if k in kinds])
