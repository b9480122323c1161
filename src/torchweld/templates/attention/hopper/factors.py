"""The shared memory of a Gluon score nest: row factors, which stay, and rings of key factors and of
numbers that belong to keys."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from torchweld.ir.nodes import Value
from torchweld.templates.attention.hopper.schedule import HopperSchedule, Windows
from torchweld.templates.gemm.hopper.tiles import Memory, Tile
from torchweld.templates.gemm.hopper.windows import Window


@dataclass(frozen=True, slots=True)
class Factors:
    """`rows`, `keys`: of each inner product, the memory of its factors; `values`: of each outer
    product, that of its key factor; `numbers`: of a load, that of its values. `all`: each once."""

    rows: tuple[Memory, ...]
    keys: tuple[Memory, ...]
    values: tuple[Memory, ...]
    numbers: Mapping[Value, Memory]

    @property
    def fixed(self) -> tuple[Memory, ...]:
        return tuple(dict.fromkeys(self.rows))

    @property
    def rings(self) -> tuple[Memory, ...]:
        return tuple(dict.fromkeys((*self.keys, *self.values, *self.numbers.values())))

    @property
    def all(self) -> tuple[Memory, ...]:
        return (*self.fixed, *self.rings)

    @property
    def only_inner(self) -> tuple[Memory, ...]:
        """Factors that no outer product reads."""
        return tuple(m for m in dict.fromkeys(self.keys) if m not in self.values)

    @property
    def only_outer(self) -> tuple[Memory, ...]:
        return tuple(m for m in dict.fromkeys(self.values) if m not in self.keys)


def factors_of(
    windows: Windows, s: HopperSchedule, depths: Iterable[int], columns: Iterable[int]
) -> Factors:
    """`depths`, `columns`: of the tiles of each inner and each outer product."""
    depths, known = tuple(depths), {}

    def memory(letter: str, slots: str, window: Window, depth: int) -> Memory:
        if window not in known:
            number = sum(m.name.startswith(letter) for m in known.values())
            name, sides = f"{letter}{number}", {"rows": s.block_rows, "keys": s.block_keys}
            block = window.block(**sides, depth=depth)
            known[window] = Memory(name, slots, block, Tile(name, window, block, name))
        return known[window]

    return Factors(
        tuple(memory("a", "GROUPS", w, d) for w, d in zip(windows.rows, depths)),
        tuple(memory("b", "STAGES", w, d) for w, d in zip(windows.keys, depths)),
        tuple(memory("b", "STAGES", w, d) for w, d in zip(windows.values, columns)),
        {load: memory("n", "STAGES", w, 1) for load, w in windows.numbers},
    )
