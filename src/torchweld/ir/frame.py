"""Frames: which axes of a Comp are its rows and which its columns. A Comp with a frame can be one
kernel.

    rows     parallel points; each is computed on its own
    columns  what row reductions and scans run over; pointwise values may live there too

Every `Reduce` runs over exactly the columns (a row reduction: norm, softmax, ...) or over exactly
the rows (a column reduction with one result: the weight gradient of a norm), in which case nothing
but columnwise values and stores may follow it. A `Scan` runs over the only column. A pointwise Comp
has rows alone.
"""

from __future__ import annotations

from dataclasses import dataclass

from torchweld.ir.affine import Affine
from torchweld.ir.monoid import TABLE
from torchweld.ir.nodes import (
    Comp,
    Load,
    Reduce,
    Scan,
    map_axes,
    operands,
    store_operands,
    value_axes,
)


@dataclass(frozen=True, slots=True)
class Frame:
    """Axis names, in the Comp's order. `column_reductions`: values of the Reduces that run over the
    rows."""

    rows: tuple[str, ...]
    columns: tuple[str, ...]
    column_reductions: tuple[int, ...] = ()


def frame_of(comp: Comp) -> Frame | None:
    """The frame of `comp`, or None if its reductions do not fit one."""
    names = tuple(a.name for a in comp.axes)
    reduced = {_reduced(i) for i in comp.body if isinstance(i, (Reduce, Scan))}
    if not reduced:
        return Frame(names, ())
    if len(reduced) > 2:
        return None
    for columns in sorted(
        reduced, reverse=True,
        key=lambda axes: (_innermost(comp, axes), [names.index(a) for a in sorted(axes)]),
    ):  # fmt: skip
        frame = _try_columns(comp, names, columns, reduced)
        if frame is not None:
            return frame
    return None


def _innermost(comp: Comp, axes: frozenset[str]) -> int:
    """How many loads have one of these axes in their last index, which is contiguous as a rule."""
    last = (i.index[-1] for i in comp.body if isinstance(i, Load) and i.index)
    return sum(isinstance(e, Affine) and not axes.isdisjoint(e.axes) for e in last)


def _try_columns(
    comp: Comp, names, columns: frozenset[str], reduced: set[frozenset[str]]
) -> Frame | None:
    rows = frozenset(names) - columns
    others = reduced - {columns}
    if others and others != {rows}:
        return None
    if any(isinstance(i, Scan) and columns != {i.axis} for i in comp.body):
        return None
    over_rows = tuple(
        v for v, i in enumerate(comp.body) if isinstance(i, Reduce) and _reduced(i) in others
    )
    if any(TABLE[comp.body[v].monoid].results > 1 for v in over_rows):
        return None
    if over_rows and not _only_columnwise_after(comp, set(over_rows), rows):
        return None
    return Frame(
        tuple(n for n in names if n in rows), tuple(n for n in names if n in columns), over_rows
    )


def _only_columnwise_after(comp: Comp, reductions: set[int], rows: frozenset[str]) -> bool:
    """No value that depends on a column reduction varies along rows, is stored in every row, is
    reduced again or needs a row reduction too: there may be no row."""
    axes, after, of_rows = value_axes(comp.body), set(reductions), set()
    for value, instr in enumerate(comp.body):
        if value in reductions:
            continue
        reduces, used = isinstance(instr, (Reduce, Scan)), set(operands(instr))
        if reduces or used & of_rows:
            of_rows.add(value)
        if used & after:
            after.add(value)
        if value in after and (axes[value] & rows or value in of_rows):
            return False
    stored = (s for s in comp.stores if after.intersection(store_operands(s)))
    return not any(
        rows & map_axes(s.index).union(*(axes[v] for v in store_operands(s))) for s in stored
    )


def _reduced(instr: Reduce | Scan) -> frozenset[str]:
    return frozenset(instr.axes) if isinstance(instr, Reduce) else frozenset((instr.axis,))
