"""What every part of the generator asks about the kernel at hand."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from torchweld.codegen.cpp import expr as x
from torchweld.codegen.emitter import Emitter
from torchweld.core import dtypes
from torchweld.ir.nodes import Instr, Reduce, Value, needed
from torchweld.ir.size import Size
from torchweld.templates.attention.cpu.schedule import NestRoles, NestTiles
from torchweld.templates.attention.cpu.stages import Stages
from torchweld.templates.pointwise_reduce.cpu.kernel import Kernel
from torchweld.templates.pointwise_reduce.cpu.values import Texts, define

ELEMENTS = {dtypes.f32: "float", dtypes.f16: "tw_f16", dtypes.bf16: "tw_bf16"}


@dataclass(frozen=True)
class Code:
    """`k`: how values are written; `walks`: the stages of each walk."""

    roles: NestRoles
    tiles: NestTiles
    k: Kernel
    walks: tuple[Stages, ...]

    @property
    def body(self) -> tuple[Instr, ...]:
        return self.roles.comp.body

    @property
    def key(self) -> str:
        """The variable of the tiled axis of keys."""
        return self.k.names[self.roles.key]

    @property
    def keys(self) -> frozenset[str]:
        return frozenset(self.roles.nest.keys)

    @property
    def finished(self) -> frozenset[Value]:
        return frozenset(v for v, i in enumerate(self.body) if isinstance(i, Reduce))

    def axes(self, value: Value) -> frozenset[str]:
        return self.k.stages.axes[value]

    def name(self, axis: str) -> str:
        return self.k.names[axis]

    def points(self, axes: tuple[str, ...]) -> str:
        return x.size_text(self.roles.points(axes))


def coordinates(c: Code, e: Emitter, axes: tuple[str, ...], index: str) -> None:
    """The axes' variables from their linear index, the last one fastest."""
    for place, axis in enumerate(axes):
        inner = c.roles.points(axes[place + 1 :])
        text = index if inner == 1 else f"{index} / {x.size_text(inner)}"
        text = text if place == 0 else f"({text}) % {c.k.extent(axis)}"
        e.line(f"const int64_t {c.name(axis)} = {text};")


def define_fixed(c: Code, e: Emitter, values: Iterable[Value], texts: Texts, along) -> None:
    """Of what `values` are made of: all that does not vary along some axes, and is not written yet.
    Reductions are in `texts`, or their time has not come."""
    behind = needed(c.body, values, stop={*texts, *c.finished})
    for value in sorted(behind):
        if value not in texts and value not in c.finished and not c.axes(value) & along:
            define(c.k, e, value, texts)


def padded(width: Size) -> str:
    """Columns in whole vectors, as C++."""
    return f"tw_whole({x.size_text(width)}, TW_WIDTH)"
