"""Rows of the page's tables: kernels and modules of a profile, those of repeated layers taken
together."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from torchweld.core.units import counted, general
from torchweld.observe.record.profile import Kernel, Place, Profile, short_name
from torchweld.observe.record.report import Group

MISS = 1.5  # measured / predicted, or its inverse


@dataclass(frozen=True, slots=True)
class KernelRow:
    """Kernels that do the same at the same place of each layer. Times, bytes and flops are of one
    step, all of them together; None where that is not known of each. `missed`: among the misses of
    the prediction that matter most, and by more than MISS."""

    way: str
    name: str
    kind: str
    operations: str
    module: str
    source: str
    phase: str
    dtype: str
    calls: int
    measured_us: float
    share: float
    predicted_us: float | None
    bytes: int | None
    flops: float | None
    regime: str
    limit_share: float | None
    missed: bool

    @property
    def ratio(self) -> float | None:
        """measured / predicted"""
        return self.measured_us / self.predicted_us if self.predicted_us else None


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
        known = self.before_us is not None and self.after_us is not None
        return self.before_us - self.after_us if known else None


def operations_text(places: Iterable[Place]) -> str:
    """add, mul, add -> "2 add, mul" """
    return ", ".join(counted([short_name(place.op) for place in places]))


def kernel_rows(profile: Profile) -> list[KernelRow]:
    """The longest first."""
    total = sum(k.measured_us for k in profile.kernels) or 1.0
    worst = set(profile.accuracy.worst)
    alike = _by(profile.kernels, _looks)
    rows = [_kernel_row(same, profile.way, total, worst) for same in alike]
    return sorted(rows, key=lambda row: -row.measured_us)


def _looks(kernel: Kernel) -> tuple:
    places = tuple((p.op, general(p.module), p.source) for p in kernel.places)
    work = kernel.dtype, kernel.bytes, kernel.flops
    return kernel.family, kernel.kind, kernel.phase, places, work


def _kernel_row(same: list[Kernel], way: str, total: float, worst: set[int]) -> KernelRow:
    first, measured = same[0], sum(k.measured_us for k in same)
    predicted = _sum(k.predicted_us for k in same)
    modules = dict.fromkeys(general(p.module) for k in same for p in k.places if p.module)
    alone = len(same) == 1
    return KernelRow(
        way=way,
        name=first.name if alone else first.family,
        kind=first.kind,
        operations=operations_text(first.places),
        module=", ".join(p.module for p in first.places[:1]) if alone else ", ".join(modules),
        source=next((p.source for p in first.places if p.source), ""),
        phase=first.phase,
        dtype=first.dtype,
        calls=sum(k.calls for k in same),
        measured_us=measured,
        share=measured / total,
        predicted_us=predicted,
        bytes=_sum(k.bytes for k in same),
        flops=_sum(k.flops for k in same),
        regime=max((k.regime for k in same), key=[k.regime for k in same].count),
        limit_share=_limit(same, measured),
        missed=_is_off(measured, predicted) and any(k.id in worst for k in same),
    )


def _is_off(measured: float, predicted: float | None) -> bool:
    return bool(predicted) and not predicted / MISS <= measured <= predicted * MISS


def _limit(same: list[Kernel], measured: float) -> float | None:
    """Mean by time."""
    if measured <= 0 or any(k.limit_share is None for k in same):
        return None
    return sum(k.limit_share * k.measured_us for k in same) / measured


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
    eager = _by((k for k in _of_phase(before, phase) if k.places), _operation)
    found = [same for same in eager if _operation(same[0]) in wanted]
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


def _by(items: Iterable, key: Callable) -> list[list]:
    """In groups that have the same key."""
    found: dict = defaultdict(list)
    for item in items:
        found[key(item)].append(item)
    return list(found.values())
