"""Which rows a Comp works on: the flat number of a row as an affine map of the Comp's axes, and the
part of the Comp that belongs to some rows only.

Rows are counted along the leading dimensions of a buffer: of x [4, 512, 768] there are 2048. A
buffer's `steps` say how far each of its dimensions goes: (512, 1, 0) here, 0 for columns.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from torchweld.ir.affine import Affine
from torchweld.ir.nodes import Comp, IndexMap, Load, Reduce, Ref, Scan, Store, Value, operands

Steps = tuple[int, ...]
Span = tuple[int, int]  # first, how many


_CHUNK = re.compile(r"_rows_(\d+)(?=_|$)")


def chunk_name(name: str, number: int) -> str:
    """Of a node or buffer that was `name`, for the rows of chunk `number`."""
    return f"{name}_rows_{number}"


def chunk_of(name: str) -> str | None:
    """The chunk of rows that a node works on; None for all of them."""
    found = _CHUNK.search(name)
    return found and found[1]


class NotByRows(Exception):
    """What is not done row by row, and why: the text is evidence."""


@dataclass(frozen=True, slots=True)
class RowAxis:
    name: str
    extent: int
    step: int  # rows from one point to the next


def leading_steps(shape: Sequence[int]) -> Steps:
    """Every dimension but the last counts rows: (512, 1, 0) of [4, 512, 768]."""
    steps, step = [0], 1
    for extent in reversed(shape[:-1]):
        steps.append(step)
        step *= extent
    return tuple(reversed(steps))


def flat_row(index: IndexMap, steps: Steps) -> Affine:
    """The row that an access touches. Raises NotByRows where that is computed."""
    row = Affine()
    for entry, step in zip(index, steps):
        if step and isinstance(entry, Ref):
            raise NotByRows("the row is computed")
        row = row + entry * step if step else row
    return row


def row_axes(comp: Comp, row: Affine) -> tuple[RowAxis, ...]:
    """The axes that a row is made of, the slowest first. Raises NotByRows unless each row is at one
    point of them."""
    extents = comp.extents
    axes = sorted((RowAxis(n, extents[n], c) for n, c in row.terms), key=lambda a: -a.step)
    reach = 0
    for axis in reversed(axes):
        if axis.step <= reach:
            raise NotByRows(f"{comp.name}: rows overlap along {axis.name}")
        reach += axis.step * (axis.extent - 1)
    if row.const != 0 or not axes:
        raise NotByRows(f"{comp.name}: each point reads another row")
    return tuple(axes)


def written_steps(store: Store, axes: Iterable[RowAxis]) -> Steps:
    """How the dimensions of a buffer that is stored row by row count rows. Raises NotByRows where
    rows are not apart there."""
    step_of, found, seen = {a.name: a.step for a in axes}, [], set()
    for entry in store.index:
        here = [] if isinstance(entry, Ref) else [t for t in entry.terms if t[0] in step_of]
        rates = {step_of[name] // c if step_of[name] % c == 0 else 0 for name, c in here}
        whole = len(here) == len(entry.terms) and entry.const == 0 if here else True
        if len(rates) > 1 or 0 in rates or not whole or seen.intersection(n for n, _ in here):
            raise NotByRows(f"rows of {store.buffer} are mixed with columns")
        seen.update(n for n, _ in here)
        found.append(rates.pop() if rates else 0)
    if seen != step_of.keys():
        raise NotByRows(f"{store.buffer} does not keep rows apart")
    return tuple(found)


def spans(dims: Iterable[tuple[int, int]], low: int, high: int) -> list[Span]:
    """Of dimensions (step, extent), the slowest first: the box that is rows [low, high). Raises
    NotByRows where that is no box, or empty."""
    found: list[Span] = []
    for step, extent in dims:
        if low % step == 0 and high % step == 0:
            first, last = low // step, high // step
            low, high = 0, step
        elif low // step == (high - 1) // step:
            first = low // step
            last, low, high = first + 1, low - first * step, high - first * step
        else:
            raise NotByRows(f"rows {low} to {high} are no box in steps of {step}")
        found.append((first, min(last, extent) - first))
        if found[-1][1] <= 0:
            raise NotByRows(f"no row of {low} to {high} is among {extent}")
    return found


# -- values --


def depends(comp: Comp, buffers: Iterable[str]) -> list[bool]:
    """Of each value: whether it is made of what `buffers` hold."""
    names, found = frozenset(buffers), []
    for instr in comp.body:
        own = isinstance(instr, Load) and instr.buffer in names
        found.append(own or any(found[v] for v in operands(instr)))
    return found


def row_reductions(comp: Comp, axes: Iterable[RowAxis], late: Sequence[bool]) -> list[Value]:
    """The first reductions over rows of values that are `late`. Raises NotByRows for a scan."""
    names, found, behind = {a.name for a in axes}, [], set()
    for value, instr in enumerate(comp.body):
        over = {instr.axis} if isinstance(instr, Scan) else set(getattr(instr, "axes", ()))
        if behind.intersection(operands(instr)):
            behind.add(value)
        elif late[value] and over & names:
            if not isinstance(instr, Reduce):
                raise NotByRows(f"{comp.name}: a prefix over rows")
            found.append(value)
            behind.add(value)
    return found


def reads_rows(comp: Comp, known: Mapping[str, Steps]) -> set[Affine]:
    """The rows of `known` buffers that a Comp reads and writes, as maps of its axes."""
    loads = [i for i in comp.body if isinstance(i, Load)]
    accesses = [*loads, *comp.stores]
    return {flat_row(a.index, known[a.buffer]) for a in accesses if a.buffer in known}
