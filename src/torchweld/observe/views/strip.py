"""Kernels before and after as two strips: what was fused has the same number in both."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from torchweld.core.grouped import grouped
from torchweld.observe.record.profile import Kernel, Place, Profile
from torchweld.observe.views.rows import KernelRow, kernel_rows, operations_text

MOST_MARKED = 8  # groups with a number of their own; the rest share OTHERS
OTHERS = MOST_MARKED + 1
APART = 0  # the number of kernels that nothing was fused into, and that were not fused


@dataclass(frozen=True, slots=True)
class Block:
    """Kernels alike, of one step: `group` is a number of `Fused`, OTHERS, or APART."""

    row: KernelRow
    group: int

    @property
    def us(self) -> float:
        """Measured time of its kernels in a step."""
        return self.row.measured_us

    @property
    def leaf(self) -> str:
        """What the module is called in its parent, where the block stands for one operation."""
        alone = self.row.kind != "generated" and "," not in self.row.module
        name = self.row.module.rpartition(".")[2]
        return name if alone and name != "*" else ""


@dataclass(frozen=True, slots=True)
class Strip:
    """The kernels of one way in the order in which a step first runs them."""

    way: str
    blocks: tuple[Block, ...]

    @property
    def us(self) -> float:
        """Measured time of all blocks."""
        return sum(block.us for block in self.blocks)

    @property
    def kernels(self) -> int:
        """Launches of all blocks."""
        return sum(block.row.calls for block in self.blocks)


@dataclass(frozen=True, slots=True)
class Fused:
    """Operations that became one kernel, all such kernels of a step together."""

    number: int
    operations: tuple[Place, ...]
    before: int
    after: int
    before_us: float
    after_us: float
    backward: bool

    @property
    def text(self) -> str:
        """Its operations, by short names."""
        return operations_text(self.operations)

    @property
    def saved_us(self) -> float:
        """Measured time before less after; negative: lost."""
        return self.before_us - self.after_us


@dataclass(frozen=True, slots=True)
class Strips:
    """`fused`: those that save most first, MOST_MARKED at most; `others`: how many more."""

    before: Strip
    after: Strip
    fused: tuple[Fused, ...]
    others: int

    @property
    def longest_us(self) -> float:
        """The length of the scale of time; 1 if nothing ran."""
        return max(self.before.us, self.after.us) or 1.0


def strips(before: Profile | None, after: Profile | None) -> Strips | None:
    """None where one of the profiles is missing."""
    if before is None or after is None:
        return None
    kinds = grouped((k for k in after.kernels if k.places[1:]), _kind)
    claimed = _claims(kinds, before.kernels)
    found = [_fused(same, claimed[kind]) for kind, same in kinds.items() if claimed[kind]]
    found.sort(key=lambda f: -f.saved_us)
    numbers = {_key(f): min(n, OTHERS) for n, f in enumerate(found, 1)}
    of_eager = {k.id: numbers[kind] for kind, ks in claimed.items() if kind in numbers for k in ks}
    marked = [_numbered(f, n) for n, f in enumerate(found[:MOST_MARKED], 1)]
    return Strips(
        _strip(before, lambda k: of_eager.get(k.id, APART)),
        _strip(after, lambda k: numbers.get(_kind(k), OTHERS) if k.places[1:] else APART),
        tuple(marked), max(0, len(found) - MOST_MARKED),
    )  # fmt: skip


def _kind(kernel: Kernel) -> tuple:
    """Fused kernels of the same operations, in whatever order and layer, are one kind."""
    return kernel.phase, tuple(sorted(place.op for place in kernel.places))


def _key(fused: Fused) -> tuple:
    phase = "backward" if fused.backward else "forward"
    return phase, tuple(sorted(place.op for place in fused.operations))


def _claims(kinds: dict[tuple, list[Kernel]], eager: Sequence[Kernel]) -> dict[tuple, list[Kernel]]:
    """The kernels of eager that became each kind: those of its operations at their modules; where
    a module does an operation several times, those at its line first."""
    free: dict[tuple, list[Kernel]] = defaultdict(list)
    for kernel in eager:
        for place in kernel.places[:1]:
            free[kernel.phase, place.op, place.module].append(kernel)
    claimed: dict[tuple, list[Kernel]] = {kind: [] for kind in kinds}
    wanted = [(kind, kernel.phase, place)
              for kind, same in kinds.items() for kernel in same for place in kernel.places]
    for exact in (True, False):
        wanted = [w for w in wanted if not _claim(*w, free, claimed, exact)]
    _claim_rest(kinds, free, claimed)
    return claimed


def _claim_rest(kinds: dict[tuple, list[Kernel]], free: dict, claimed: dict) -> None:
    """What is left over at the very line of a fused kernel went into it: simplified away, or done
    under another name."""
    lines = {(kernel.phase, place.module, place.source): kind for kind, same in kinds.items()
             for kernel in same for place in kernel.places if place.source}
    for kernel in (k for left in free.values() for k in left):
        place = kernel.places[0]
        kind = lines.get((kernel.phase, place.module, place.source))
        if kind is not None and not kernel.product:
            claimed[kind].append(kernel)


def _claim(kind: tuple, phase: str, place: Place, free, claimed, exact: bool) -> bool:
    here = free.get((phase, place.op, place.module), [])
    found = next((k for k in here if not exact or k.places[0].source == place.source), None)
    if found is not None:
        here.remove(found)
        claimed[kind].append(found)
    return found is not None


def _fused(same: Sequence[Kernel], eager: Sequence[Kernel]) -> Fused:
    first = same[0]
    return Fused(
        0, tuple(first.places), sum(k.calls for k in eager), sum(k.calls for k in same),
        sum(k.measured_us for k in eager), sum(k.measured_us for k in same),
        first.phase == "backward",
    )  # fmt: skip


def _numbered(fused: Fused, number: int) -> Fused:
    return Fused(number, fused.operations, fused.before, fused.after, fused.before_us,
                 fused.after_us, fused.backward)  # fmt: skip


def _strip(profile: Profile, group_of) -> Strip:
    """Rows that two groups share are divided between them."""
    blocks = []
    for row in kernel_rows(profile):
        for group, kernels in grouped(row.kernels, group_of).items():
            part = KernelRow(row.way, tuple(kernels), row.share, row.missed, row.made)
            blocks.append(Block(part, group))
    return Strip(profile.way, tuple(sorted(blocks, key=lambda b: b.row.first.id)))
