"""What the planner decided, as records that `explain` and the report read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Union

from torchweld.ir.nodes import Graph, Origin
from torchweld.plan.refusals import Reason
from torchweld.templates.template import Kernel


@dataclass(frozen=True, slots=True)
class Fusion:
    """Computations that became one kernel. Bytes are those of `templates/traffic.py`, before of a
    kernel each; a member that several kernels repeat counts in the first only. `saved_us` is
    predicted. `separate_us`, `fused_us`: of a product with its neighbours, both sides as predicted:
    the library's calls and the kernel that read their results, and what replaced them."""

    kernel: str
    members: tuple[str, ...]
    origins: tuple[Origin, ...]
    bytes_before: int
    bytes_after: int
    launches_before: int
    launches_after: int
    saved_us: float
    separate_us: float | None = None
    fused_us: float | None = None


@dataclass(frozen=True, slots=True)
class Cut:
    """A computation that became several kernels, because it has no frame or is predicted to be
    faster so."""

    member: str
    kernels: tuple[str, ...]
    saved_us: float


@dataclass(frozen=True, slots=True)
class RefusalRecord:
    """A pair of kernels that exchange `bytes_at_stake` through memory, and why they were not
    fused."""

    producer: str
    consumer: str
    reason: Reason
    evidence: str
    bytes_at_stake: int


@dataclass(frozen=True, slots=True)
class Choice:
    """What makes a kernel: a template or, for a library call, its target; seconds as predicted, and
    why not another. `schedule` is text."""

    kernel: str
    template: str
    schedule: str
    predicted_us: float
    reason: str


Decision = Union[Fusion, Cut, RefusalRecord, Choice]


def renamed_decision(decision: Decision, on: Callable[[str], str]) -> Decision:
    """The same decision about kernels and members of other names."""
    if isinstance(decision, Fusion):
        members = tuple(map(on, decision.members))
        return replace(decision, kernel=on(decision.kernel), members=members)
    if isinstance(decision, Cut):
        kernels = tuple(map(on, decision.kernels))
        return replace(decision, member=on(decision.member), kernels=kernels)
    if isinstance(decision, RefusalRecord):
        return replace(decision, producer=on(decision.producer), consumer=on(decision.consumer))
    return replace(decision, kernel=on(decision.kernel))


@dataclass(frozen=True, slots=True)
class Plan:
    """Every Comp of `graph` has a frame and is one kernel: `kernels` has the decision about each,
    once they are made (the last step of planning)."""

    graph: Graph
    decisions: tuple[Decision, ...]
    kernels: tuple[Kernel, ...] = ()

    @property
    def fusions(self) -> tuple[Fusion, ...]:
        return tuple(d for d in self.decisions if isinstance(d, Fusion))

    @property
    def choices(self) -> tuple[Choice, ...]:
        return tuple(d for d in self.decisions if isinstance(d, Choice))

    @property
    def refusals(self) -> tuple[RefusalRecord, ...]:
        return tuple(d for d in self.decisions if isinstance(d, RefusalRecord))
