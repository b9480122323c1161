"""What is asked for, and the plans that come back, as records that JSON carries from one process
to another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class Asked:
    """`target`: a name of the zoo, or path/to/file.py:function. `devices`: names of targets
    (`targets.find.TARGETS`). `dtype`: None for the usual one of each device."""

    target: str
    devices: tuple[str, ...]
    train: bool = False
    dtype: str | None = None
    tiny: bool = False


@dataclass(frozen=True, slots=True)
class Step:
    """One kernel, or one library call (`is_call`): `template` is then its name in ATen.
    `predicted_us`: None where no template prices the call. `origins`: the operations that it
    makes."""

    name: str
    is_call: bool
    template: str
    schedule: str
    predicted_us: float | None
    reason: str
    origins: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Refused:
    """Two kernels that were not fused, and why."""

    producer: str
    consumer: str
    reason: str
    evidence: str
    bytes_at_stake: int


@dataclass(frozen=True, slots=True)
class PlannedGraph:
    """The plan of one captured graph on one device; `kind`: inference, forward or backward."""

    target: str
    device: str
    kind: str
    steps: tuple[Step, ...]
    refusals: tuple[Refused, ...]

    @property
    def kernels(self) -> tuple[Step, ...]:
        return tuple(s for s in self.steps if not s.is_call)

    @property
    def calls(self) -> tuple[Step, ...]:
        return tuple(s for s in self.steps if s.is_call)


@dataclass(frozen=True, slots=True)
class Plans:
    """`notes`: what the compiler warned of, a graph that would run in eager among it."""

    graphs: tuple[PlannedGraph, ...]
    notes: tuple[str, ...]


def as_json(record: Asked | Plans) -> dict:
    """What `asked_of` and `plans_of` read."""
    return asdict(record)


def asked_of(read: Mapping) -> Asked:
    return Asked(**{**read, "devices": tuple(read["devices"])})


def plans_of(read: Mapping) -> Plans:
    return Plans(tuple(_graph(g) for g in read["graphs"]), tuple(read["notes"]))


def _graph(read: Mapping) -> PlannedGraph:
    steps = tuple(Step(**{**s, "origins": tuple(s["origins"])}) for s in read["steps"])
    refusals = tuple(Refused(**r) for r in read["refusals"])
    return PlannedGraph(**{**read, "steps": steps, "refusals": refusals})
