"""What a template is: a way to make kernels of one form, as six functions.

    match       Problem -> roles, or None       what of the Comp plays which part (M, N, K, batch)
    supports    roles, Problem -> reason        why this template cannot make it; None: it can
    candidates  roles, Problem -> schedules     the default first
    price       roles, schedule, Problem -> s   predicted seconds
    generate    roles, schedule, Problem -> KernelBundle
    reference   Extern, buffers -> Comp         a library call of this form, written out; None: it
                                                is no such call

Each template is a folder with a module `template.py` that binds them; `registry.py` lists them by
name, and a Target says which of them it has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Union

from torchweld.codegen.source import KernelBundle
from torchweld.ir.access import Accesses, addressed
from torchweld.ir.contraction import Contraction, contraction_of
from torchweld.ir.nodes import Buffer, Comp, Extern
from torchweld.targets.target import Target
from torchweld.templates.gemm.schedule import ProductSchedule

# (accesses, contraction, buffers, target, hints) -> how a GEMM is tiled, or why no template does it
Choose = Callable[
    [Accesses, Contraction, Mapping[str, Buffer], Target, Mapping[str, int]],
    Union[ProductSchedule, str],
]


@dataclass(frozen=True)
class Problem:
    """A Comp that wants a kernel. `hints`: typical values of symbols. `choose`: tilings of GEMMs on
    a GPU, as predicted or as a tuner measured them."""

    comp: Comp
    buffers: Mapping[str, Buffer]
    target: Target
    hints: Mapping[str, int]
    choose: Choose

    @cached_property
    def accesses(self) -> Accesses:
        """Raises InvalidIR if the Comp has no frame."""
        return addressed(self.comp, self.buffers, self.hints)

    @cached_property
    def contraction(self) -> Contraction | None:
        """The products of matrices that the Comp makes on a GPU."""
        return contraction_of(self.accesses)

    @cached_property
    def tiling(self) -> ProductSchedule | str:
        """How these are tiled, or why no template does it."""
        return self.choose(
            self.accesses, self.contraction, self.buffers, self.target, self.hints)


NO_SCHEDULE = "no tiling fits"  # why a template that supports a Comp makes no kernel of it

Roles = Any  # each template's own frozen record
Schedule = Any


@dataclass(frozen=True, slots=True)
class Template:
    name: str
    match: Callable[[Problem], Roles | None]
    supports: Callable[[Roles, Problem], str | None]
    candidates: Callable[[Roles, Problem], Iterable[Schedule]]
    price: Callable[[Roles, Schedule, Problem], float]
    generate: Callable[[Roles, Schedule, Problem], KernelBundle]
    reference: Callable[[Extern, Mapping[str, Buffer]], Comp | None]


@dataclass(frozen=True)
class Kernel:
    """One kernel of a plan, decided: code generation prints it. `problem` has canonical names, so
    that equal layers share a kernel; `uses`: for each Comp of the plan that it makes, its name and
    the buffers in the place of b0, b1, ... `offsets`: of uses that read windows of buffers
    (`ir/windows.py`), the bytes before each. `reason`: why this template and not a more special
    one."""

    problem: Problem
    template: str
    roles: Roles
    schedule: Schedule
    predicted_s: float
    reason: str
    uses: tuple[tuple[str, tuple[str, ...]], ...] = ()
    offsets: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


def no_reference(node: Extern, buffers: Mapping[str, Buffer]) -> Comp | None:
    """Of a template that stands for no library call."""
    return None
