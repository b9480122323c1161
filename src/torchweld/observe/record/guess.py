"""The expected trace of a step, as data: what `torchweld profile --predict` says before anything is
run."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Annotated

from torchweld.core.errors import UsageError
from torchweld.observe.record.profile import Kernel, Place, family
from torchweld.observe.record.reading import validated

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Expected:
    """One kernel at one place of the program."""

    name: Annotated[str, "of the generated kernel, the library call or the operator"]
    kind: Annotated[str, "operator (eager), generated or library"]
    places: Annotated[list[Place], "the operations that it does"]
    phase: Annotated[str, "forward or backward"]
    dtype: Annotated[str, "of its largest floating tensor, - if there is none"]
    regime: Annotated[str, "launch, memory or compute: what limits it"]
    predicted_us: Annotated[float, "microseconds of a call"]
    bytes: Annotated[int, "read and written"]
    flops: Annotated[float, "arithmetic, 2 a multiply-add"]

    @property
    def family(self) -> str:
        """The name without its number, for generated kernels."""
        return family(self.name) if self.kind == "generated" else self.name


@dataclass(frozen=True)
class Guess:
    """`torchweld profile --predict` in one record."""

    schema_version: Annotated[int, "1; raised when a field changes its meaning"]
    date: Annotated[str, "when, UTC, ISO 8601"]
    target: Annotated[str, "name in the zoo, or path/to/file.py:function"]
    way: Annotated[str, "eager or torchweld"]
    train: Annotated[bool, "true: forward, loss and backward"]
    device: Annotated[str, "the device that it is a guess for"]
    kernels: Annotated[list[Expected], "in the order in which a step runs them"]

    @property
    def us(self) -> float:
        """Of all kernels, one after the other."""
        return sum(kernel.predicted_us for kernel in self.kernels)

    def to_json(self) -> str:
        """As `from_json` reads it."""
        return json.dumps(asdict(self), indent=1) + "\n"

    @staticmethod
    def from_json(text: str) -> Guess:
        """Errors: UsageError, in one line."""
        try:
            values = json.loads(text)
        except json.JSONDecodeError as error:
            raise UsageError(f"the guess is not valid JSON: {error.msg}") from None
        return validated(Guess, values, "the guess")


@dataclass(frozen=True)
class RegimeSum:
    """Kernels of one regime: how many and how long, guessed and measured."""

    regime: str
    guessed: int
    guessed_us: float
    measured: int
    measured_us: float


def beside(guess: Guess, kernels: Iterable[Kernel]) -> list[RegimeSum]:
    """By regime, the longest first; kernels of copies and those whose work is not known have no
    guess."""
    measured = list(kernels)
    names = dict.fromkeys([*(k.regime for k in guess.kernels), *(k.regime for k in measured)])
    found = []
    for name in names:
        ours = [k for k in guess.kernels if k.regime == name]
        theirs = [k for k in measured if k.regime == name]
        found.append(RegimeSum(
            name, len(ours), sum(k.predicted_us for k in ours),
            sum(k.calls for k in theirs), sum(k.measured_us for k in theirs)))
    return sorted(found, key=lambda r: -max(r.guessed_us, r.measured_us))


def surprises(guess: Guess, kernels: Iterable[Kernel]) -> tuple[list[str], list[str]]:
    """Operations of kernels that ran and were not guessed, and of those that were guessed and did
    not run."""
    ran = dict.fromkeys(_operations(k.places, k.phase) for k in kernels if k.places)
    expected = dict.fromkeys(_operations(k.places, k.phase) for k in guess.kernels)
    return ([_text(o) for o in ran if o not in expected],
            [_text(o) for o in expected if o not in ran])


def _operations(places: Iterable[Place], phase: str) -> tuple[str, tuple[str, ...]]:
    return phase, tuple(dict.fromkeys(place.short_op for place in places))


def _text(operations: tuple[str, tuple[str, ...]]) -> str:
    phase, names = operations
    return " + ".join(names) + (" (backward)" if phase == "backward" else "")
