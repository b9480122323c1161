"""Rows of tables, on a terminal and on the page: kernels and modules of a profile, those of
repeated layers taken together."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from torchweld.core.grouped import grouped
from torchweld.core.units import counted, general
from torchweld.observe.record.profile import Kernel, Place, Profile
from torchweld.observe.record.report import GraphPart, Group, Made

MISS = 1.5  # measured / predicted, or its inverse


@dataclass(frozen=True, slots=True)
class KernelRow:
    """Kernels that do the same at the same place of each layer. Times, bytes and flops are of one
    step, all of them together; None where that is not known of each. `share`: of the time of all
    rows. `missed`: among the misses of the prediction that matter most, and by more than MISS.
    `made`: what makes a generated kernel, where that is known."""

    way: str
    kernels: tuple[Kernel, ...]
    share: float
    missed: bool
    made: Made | None

    @property
    def first(self) -> Kernel:
        """Any of the equal kernels: it stands for all."""
        return self.kernels[0]

    @property
    def name(self) -> str:
        """The kernel's, without number if there are several."""
        return self.first.family if self.kernels[1:] else self.first.name

    @property
    def kind(self) -> str:
        """As `Kernel.kind`."""
        return self.first.kind

    @property
    def operations(self) -> str:
        """The operations that it does, by short names."""
        return operations_text(self.first.places)

    @property
    def module(self) -> str:
        """Module paths, with * for the number of a repeated layer."""
        if not self.kernels[1:]:
            return ", ".join(p.module for p in self.first.places[:1])
        modules = (p.module for k in self.kernels for p in k.places)
        return ", ".join(dict.fromkeys(general(m) for m in modules if m))

    @property
    def source(self) -> str:
        """file:line of the first operation, empty if unknown."""
        return next((p.source for p in self.first.places if p.source), "")

    @property
    def calls(self) -> int:
        """Launches in a step."""
        return sum(k.calls for k in self.kernels)

    @property
    def measured_us(self) -> float:
        """In a step, of all launches."""
        return sum(k.measured_us for k in self.kernels)

    @property
    def predicted_us(self) -> float | None:
        """In a step, of all launches; None if unknown."""
        return _sum(k.predicted_us for k in self.kernels)

    @property
    def ratio(self) -> float | None:
        """measured / predicted"""
        return self.measured_us / self.predicted_us if self.predicted_us else None

    @property
    def bytes(self) -> int | None:
        """Read and written in a step; None if unknown."""
        return _sum(k.bytes for k in self.kernels)

    @property
    def flops(self) -> float | None:
        """In a step; None if unknown."""
        return _sum(k.flops for k in self.kernels)

    @property
    def regime(self) -> str:
        """The regime of most of the kernels."""
        regimes = [k.regime for k in self.kernels]
        return max(regimes, key=regimes.count)

    @property
    def limit_share(self) -> float | None:
        """Mean by time."""
        if self.measured_us <= 0 or any(k.limit_share is None for k in self.kernels):
            return None
        return sum(k.limit_share * k.measured_us for k in self.kernels) / self.measured_us


@dataclass(frozen=True, slots=True)
class ModuleRow:
    """A module, or those at its place in each layer: times of its kernels in each way, None where
    the way has none."""

    path: str
    depth: int
    count: int
    before_us: float | None
    after_us: float | None
    before_bytes: int | None
    after_bytes: int | None

    @property
    def saved_us(self) -> float | None:
        """Time before less time after; None if one is unknown."""
        known = self.before_us is not None and self.after_us is not None
        return self.before_us - self.after_us if known else None


def _looks(kernel: Kernel) -> tuple:
    places = tuple((p.op, general(p.module), p.source) for p in kernel.places)
    work = kernel.dtype, kernel.bytes, kernel.flops
    return kernel.family, kernel.kind, kernel.phase, places, work


def operations_text(places: Iterable[Place]) -> str:
    """add, mul, add -> "2 add, mul" """
    return ", ".join(counted([place.short_op for place in places]))


def kernel_rows(
    profile: Profile,
    looks: Callable[[Kernel], Hashable] = _looks,
    made: Mapping[tuple[str, str], Made] = MappingProxyType({}),
) -> list[KernelRow]:
    """The longest first; those that look alike are one. `made`: by phase and name of a kernel."""
    total = sum(k.measured_us for k in profile.kernels) or 1.0
    worst = set(profile.accuracy.worst)
    rows = [_kernel_row(same, profile.way, total, worst, made)
            for same in grouped(profile.kernels, looks).values()]
    return sorted(rows, key=lambda row: -row.measured_us)


def made_by_name(graphs: Iterable[GraphPart]) -> dict[tuple[str, str], Made]:
    """What makes each generated kernel, by phase and by the name of the kernel or a function."""
    return {
        ("backward" if graph.kind == "backward" else "forward", name): made
        for graph in graphs for made in graph.kernels for name in (*made.functions, *made.kernels)
    }  # fmt: skip


def _kernel_row(same: list[Kernel], way: str, total: float, worst: set[int], made) -> KernelRow:
    first = same[0]
    row = KernelRow(way, tuple(same), sum(k.measured_us for k in same) / total, False,
                    made.get((first.phase, first.name)))
    is_worst = any(k.id in worst for k in same)
    return replace(row, missed=is_worst and _is_off(row.ratio))


def _is_off(ratio: float | None) -> bool:
    return ratio is not None and not 1 / MISS <= ratio <= MISS


def module_rows(before: Profile | None, after: Profile | None) -> list[ModuleRow]:
    """In the order of the tree; the whole model first."""
    sums: dict[str, dict[str, list]] = defaultdict(lambda: {"before": [], "after": []})
    for side, profile in (("before", before), ("after", after)):
        for module in profile.modules if profile else ():
            sums[general(module.path)][side].append(module)
    return [_module_row(path, found["before"], found["after"]) for path, found in sums.items()]


def _module_row(path: str, before: list, after: list) -> ModuleRow:
    return ModuleRow(
        path=path or "(whole model)",
        depth=path.count(".") + 1 if path else 0,
        count=max(len(before), len(after)),
        before_us=_sum(m.measured_us for m in before),
        after_us=_sum(m.measured_us for m in after),
        before_bytes=_sum(m.bytes for m in before),
        after_bytes=_sum(m.bytes for m in after),
    )


def group_times(
    group: Group, phase: str, before: Profile | None, after: Profile | None
) -> tuple[float | None, float | None]:
    """Measured microseconds of one such kernel: of the operations in eager, of the fused kernel.
    None where they are not in the profile. Where a module does an operation more often than the
    group has it, the group gets its share."""
    wanted = Counter((place.op, place.module) for place in group.operations)
    eager = grouped((k for k in _of_phase(before, phase) if k.places), _operation)
    found = [same for operation, same in eager.items() if operation in wanted]
    shares = [min(1.0, wanted[_operation(same[0])] / _calls(same)) for same in found]
    spent = [s * sum(k.measured_us for k in same) for s, same in zip(shares, found)]
    names = {group.kernel, *(source.name for source in group.sources)}
    fused = [
        k.measured_us for k in _of_phase(after, phase)
        if k.name in names and {(p.op, p.module) for p in k.places} <= wanted.keys()
    ]  # fmt: skip
    return _sum(spent), _sum(fused)


def _of_phase(profile: Profile | None, phase: str) -> list[Kernel]:
    return [k for k in profile.kernels if k.phase == phase] if profile else []


def _operation(kernel: Kernel) -> tuple[str, str]:
    return kernel.places[0].op, kernel.places[0].module


def _calls(same: list[Kernel]) -> int:
    """Of the operation: a kernel without work of its own is a further one of the same call."""
    return sum(k.calls for k in same if k.bytes is not None) or 1


def _sum(values: Iterable) -> float | None:
    """None if there is nothing to add or a value is not known."""
    found = list(values)
    return sum(found) if found and None not in found else None
