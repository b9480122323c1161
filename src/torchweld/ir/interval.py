"""Between which integers the values of a Comp lie, as far as their making tells.

    minimum(maximum(load x[i], 0), 9)   ->   (0, 9)

Where nothing more is known, and where a result could wrap, it is what the type holds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from torchweld.core.dtypes import DType
from torchweld.ir.affine import Affine
from torchweld.ir.nodes import Cast, Comp, Const, Index, Instr, Load, Op, Pick, Reduce
from torchweld.ir.size import Size

Bounds = tuple[int, int]  # smallest and largest, both included
Known = Sequence[Bounds]  # of the values before
OfBuffer = Callable[[str], "Bounds | None"]


def stored_bounds(comp: Comp, buffer: str, of_buffer: OfBuffer) -> Bounds | None:
    """Of what `comp` stores to `buffer`; None where that is not all that the buffer holds.
    `of_buffer`: what is known of buffers that `comp` loads."""
    store = next(s for s in comp.stores if s.buffer == buffer)
    if store.combine or store.init is not None or store.guard is not None:
        return None
    return bounds(comp, of_buffer)[store.value]


def bounds(comp: Comp, of_buffer: OfBuffer) -> list[Bounds]:
    """Of each value; those of floats mean nothing."""
    extents = comp.extents
    known: list[Bounds] = []
    for instr in comp.body:
        found, limits = _of(instr, comp, known, extents, of_buffer), type_bounds(instr.dtype)
        fits = found is not None and limits[0] <= found[0] and found[1] <= limits[1]
        known.append(found if fits else limits)
    return known


def type_bounds(dtype: DType) -> Bounds:
    """Of all values of an integer type."""
    if dtype.kind in ("uint", "bool"):
        return 0, 1 if dtype.kind == "bool" else 2**dtype.bits - 1
    return -(2 ** (dtype.bits - 1)), 2 ** (dtype.bits - 1) - 1


def affine_bounds(index: Affine, extents: Mapping[str, Size]) -> Bounds | None:
    """Of an affine map over axes; None where a size is not known."""
    low = high = index.const
    for name, step in index.terms:
        if not isinstance(step, int) or not isinstance(extents[name], int):
            return None
        reach = step * max(extents[name] - 1, 0)
        low, high = low + min(reach, 0), high + max(reach, 0)
    return (low, high) if isinstance(low, int) else None


def _of(instr: Instr, comp: Comp, known: Known, extents, of_buffer: OfBuffer) -> Bounds | None:
    if isinstance(instr, Const):
        return None if isinstance(instr.value, float) else (int(instr.value), int(instr.value))
    if isinstance(instr, Index):
        return affine_bounds(instr.map, extents)
    if isinstance(instr, Load):
        return _loaded(instr, of_buffer(instr.buffer))
    if isinstance(instr, Cast):
        return None if comp.body[instr.arg].dtype.is_float else known[instr.arg]
    if isinstance(instr, Op):
        rule = _RULES.get(instr.name)
        return rule(*(known[a] for a in instr.args)) if rule else None
    if isinstance(instr, Pick):
        return _position(comp.body[instr.arg], instr.item, known)
    extreme = isinstance(instr, Reduce) and instr.monoid in ("max", "min")
    return known[instr.args[0]] if extreme else None


def _loaded(load: Load, known: Bounds | None) -> Bounds | None:
    """Of a read from a buffer of which that is known."""
    if known is None or load.guard is None or isinstance(load.fill, float):
        return known if load.guard is None else None
    return min(known[0], int(load.fill)), max(known[1], int(load.fill))


def _position(reduce: Reduce, item: int, known: Known) -> Bounds | None:
    """What argmax and argmin find is one of the positions given."""
    return known[reduce.args[1]] if reduce.monoid.startswith("arg") and item == 1 else None


def _product(a: Bounds, b: Bounds) -> Bounds:
    corners = [x * y for x in a for y in b]
    return min(corners), max(corners)


def _common_bits(a: Bounds, b: Bounds) -> Bounds | None:
    """Of `a & b`: what is not negative bounds it."""
    highest = [high for low, high in (a, b) if low >= 0]
    return (0, min(highest)) if highest else None


def _shifted_right(a: Bounds, b: Bounds) -> Bounds | None:
    """By a known number of bits."""
    known = b[0] == b[1] and 0 <= b[0] < 64
    return (a[0] >> b[0], a[1] >> b[0]) if known else None


def _remainder(a: Bounds, b: Bounds) -> Bounds | None:
    return (0, b[1] - 1) if b[0] > 0 else None


_RULES: dict[str, Callable[..., Bounds | None]] = {
    "neg": lambda a: (-a[1], -a[0]),
    "add": lambda a, b: (a[0] + b[0], a[1] + b[1]),
    "sub": lambda a, b: (a[0] - b[1], a[1] - b[0]),
    "mul": _product,
    "minimum": lambda a, b: (min(a[0], b[0]), min(a[1], b[1])),
    "maximum": lambda a, b: (max(a[0], b[0]), max(a[1], b[1])),
    "where": lambda chosen, a, b: (min(a[0], b[0]), max(a[1], b[1])),
    "remainder": _remainder,
    "bit_and": _common_bits,
    "shr": _shifted_right,
}
