"""Two computations made one: their bodies concatenated over common axes. Knows nothing of graphs or
profit.

    vertical     the consumer loads what the producer stores; the loads become values
    horizontal   neither needs the other; they share reads, or launches

    comp a [i, j] { x = load X[i, j]; store T[64*i + j] exp(x) }
    comp b [n]    { t = load T[n]; store Y[n] t + 1 }
 -> comp   [no, ni] { x = load X[no, ni]; store Y[64*no + ni] exp(x) + 1 }

A producer without reductions is evaluated at every point where the consumer reads it. One with row
reductions has a home: its rows are the consumer's rows, one to one, and its columns are bound to
the axes that the consumer works on beyond them; values after the reductions may be evaluated at
other columns too (a rotation of halves, a gather).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Union

from torchweld.ir.affine import axis
from torchweld.ir.build import BodyBuilder
from torchweld.ir.frame import frame_of
from torchweld.ir.nodes import (
    Axis,
    Cast,
    Comp,
    Load,
    Reduce,
    Ref,
    Scan,
    Store,
    Value,
    map_axes,
    operands,
    reduced_axes,
    store_operands,
    value_axes,
)
from torchweld.plan.align import Images, alignments, embeddings
from torchweld.plan.inline import Place, Shapes, apart, copy_instr, copy_store, split_in_two
from torchweld.plan.refusals import Reason, Refusal
from torchweld.plan.tidy import tidy
from torchweld.plan.unify import Extents, Image, Mismatch, Split, covered, solve, writes_all

_MOST_SPLITS = 6
_MOST_HOMES = 3


@dataclass(frozen=True, slots=True)
class Rules:
    """`keep`: buffers of the producer that the kernel must still store. `shapes`: of all buffers,
    to tell which reads stay in range without a guard. `eager`: keep every rounding that eager
    does."""

    keep: frozenset[str] = frozenset()
    shapes: Shapes | None = None
    eager: bool = False


@dataclass(frozen=True, slots=True)
class Link:
    """A store of the producer that the consumer loads, and the load's place: images of the
    producer's axes."""

    store: Store
    images: Mapping[str, Image]


@dataclass(frozen=True, slots=True)
class Home:
    """Where a producer's reductions and stores happen. `fresh`: axes that the consumer lacks."""

    images: Images
    fresh: tuple[Axis, ...] = ()


Links = Mapping[Load, Link]
Homes = Iterable[Union[Home, Split, Refusal, None]]


def merge(producer: Comp, consumer: Comp, rules: Rules) -> Comp | Refusal:
    """`consumer` with `producer` inside. Buffers of the producer outside `rules.keep` are no longer
    stored.

    The consumer's axes, split where the producer's maps demand it, are the result's.
    """
    return _merge(apart(producer, consumer), consumer, rules, _MOST_SPLITS)


def _merge(producer: Comp, consumer: Comp, rules: Rules, splits_left: int) -> Comp | Refusal:
    links = _links(producer, consumer, rules.shapes or {})
    if isinstance(links, Refusal):
        return links
    homes = (links,) if isinstance(links, Split) else _homes(producer, consumer, links, rules)
    refusal = Refusal(Reason.MAPS)
    for number, home in enumerate(homes):
        if isinstance(home, Refusal):
            return home
        if isinstance(home, Split):
            merged = _split_and_merge(producer, consumer, home, rules, splits_left)
        elif _scan_is_moved(producer, links, home):
            merged = Refusal(Reason.SCAN, producer.name)
        else:
            merged = _checked(tidy(_emit(producer, consumer, links, home, rules), rules.eager))
        if isinstance(merged, Comp):
            return merged
        refusal = merged
        if number + 1 >= _MOST_HOMES:
            break
    return refusal


def _split_and_merge(producer, consumer, split: Split, rules: Rules, left: int) -> Comp | Refusal:
    if left == 0:
        return Refusal(Reason.MAPS, f"too many splits, last of {split.axis}")
    cut = split_in_two(consumer, split.axis, split.inner)
    if cut is None:
        return Refusal(Reason.SCAN, f"a scan runs along {split.axis}")
    return _merge(apart(producer, cut), cut, rules, left - 1)


def _links(producer: Comp, consumer: Comp, shapes: Shapes) -> dict[Load, Link] | Split | Refusal:
    stores = {s.buffer: s for s in producer.stores}
    inner, outer = producer.extents, consumer.extents
    copied = next((s.init for s in consumer.stores if s.init in stores), None)
    if copied is not None:  # whole, before the kernel begins
        return Refusal(Reason.PARTIAL_WRITE, copied)
    links = {}
    for load in consumer.body:
        if not isinstance(load, Load) or load.buffer not in stores:
            continue
        store = stores[load.buffer]
        if not _is_whole(store, inner, shapes):
            return Refusal(Reason.PARTIAL_WRITE, store.buffer)
        images = solve(store.index, load.index, inner, outer)
        if isinstance(images, Split):
            return images
        if isinstance(images, Mismatch):
            return Refusal(Reason.MAPS, f"{load.buffer}: {images.evidence}")
        links[load] = Link(store, images)
    return links


def _is_whole(store: Store, extents: Extents, shapes: Shapes) -> bool:
    """Whether what is read of its buffer is what it stores: nothing is combined with what was there
    before, or left of it."""
    if store.combine or store.guard is not None:
        return False
    shape = shapes.get(store.buffer)
    return store.init is None if shape is None else writes_all(store.index, extents, shape)


def _homes(producer: Comp, consumer: Comp, links: Links, rules: Rules) -> Homes:
    """Possible homes of the producer, best first; None where it needs none."""
    frame = frame_of(producer)
    if frame is None:
        return (Refusal(Reason.NO_FRAME, producer.name),)
    if not links:
        return _sibling_homes(producer, consumer)
    if _has_reductions(producer):
        return _row_homes(producer, consumer, links, frame)
    return _stored_homes(producer, consumer, links) if rules.keep else (None,)


def _sibling_homes(producer: Comp, consumer: Comp) -> Homes:
    names, rest = tuple(a.name for a in producer.axes), tuple(a.name for a in consumer.axes)
    found = False
    for images in alignments(names, rest, {}, producer, consumer):
        found = True
        yield images if isinstance(images, Split) else Home(images)
    for images in embeddings(producer, consumer) if _only_sets_flags(producer) else ():
        found = True
        yield images if isinstance(images, Split) else Home(images)
    if not found:
        yield Refusal(
            Reason.ROWS,
            f"{list(producer.extents.values())} and {list(consumer.extents.values())}",
        )


def _stored_homes(producer: Comp, consumer: Comp, links: Links) -> Homes:
    """The first point at which the consumer reads every element exactly once."""
    inner, outer = producer.extents, consumer.extents
    for link in links.values():
        if covered(link.images, inner, outer) is not None:
            return _extend(link.images, producer, consumer, {})
    return (Refusal(Reason.NO_HOME, ", ".join(sorted({l.store.buffer for l in links.values()}))),)


def _row_homes(producer: Comp, consumer: Comp, links: Links, frame) -> Homes:
    if frame.column_reductions and _reads_column_reduction(producer, links, frame):
        return (Refusal(Reason.AFTER_COLUMN_REDUCTION, producer.name),)
    rows: dict[str, Image] = {}
    for link in links.values():
        for name in frame.rows:
            image = link.images.get(name)
            if image is None or rows.setdefault(name, image) != image:
                return (Refusal(Reason.ROWS, f"row {name} of {link.store.buffer}"),)
    taken = covered(rows, producer.extents, consumer.extents)
    if taken is None:
        return (Refusal(Reason.ROWS, f"{rows}"),)
    return _extend(rows, producer, consumer, links)


def _extend(images: Mapping[str, Image], producer: Comp, consumer: Comp, links: Links) -> Homes:
    """Homes in which the axes without an image are identified with the consumer's other axes."""
    inner, outer = producer.extents, consumer.extents
    taken = covered(images, inner, outer)
    names = tuple(n for n in inner if n not in images)
    rest = tuple(n for n in outer if n not in taken)
    if not names and (not rest or not links):
        return (Home(dict(images)),)
    if not rest:
        return (
            Home(
                {**images, **{n: axis(n) for n in names}}, tuple(Axis(n, inner[n]) for n in names)
            ),
        )
    return _column_homes(images, names, rest, producer, consumer, links)


def _column_homes(rows, names, rest, producer: Comp, consumer: Comp, links: Links) -> Iterator:
    inner, outer = producer.extents, consumer.extents
    found = False
    for link in links.values():
        columns = {n: link.images[n] for n in names if n in link.images}
        if len(columns) == len(names) and covered(columns, inner, outer) == frozenset(rest):
            found = True
            yield Home({**rows, **columns})
    for columns in alignments(names, rest, rows, producer, consumer):
        found = True
        yield columns if isinstance(columns, Split) else Home({**rows, **columns})
    if not found:
        extents = [inner[n] for n in names], [outer[r] for r in rest]
        yield Refusal(Reason.COLUMNS, f"{extents[0]} and {extents[1]}")


def _emit(producer: Comp, consumer: Comp, links: Links, home: Home | None, rules: Rules) -> Comp:
    axes = consumer.axes + (home.fresh if home else ())
    extents = {a.name: a.extent for a in axes}
    to = BodyBuilder()
    at_home: list[Value] = []
    if home:
        here = Place(home.images, extents)
        for instr in producer.body:
            at_home.append(copy_instr(to, instr, at_home, here))
    at: list[Value] = []
    same = Place({}, extents)
    for instr in consumer.body:
        if instr in links:
            at.append(
                _linked(
                    to,
                    producer,
                    instr,
                    links[instr],
                    at,
                    at_home,
                    Place({}, extents, None, rules.shapes),
                )
            )
        else:
            at.append(copy_instr(to, instr, at, same))
    kept = [copy_store(to, s, at_home, here) for s in producer.stores if s.buffer in rules.keep]
    own = [copy_store(to, s, at, same) for s in consumer.stores]
    origins = tuple(dict.fromkeys(producer.origins + consumer.origins))
    return Comp(consumer.name, axes, to.body, tuple(kept + own), origins)


def _linked(
    to: BodyBuilder, producer: Comp, load: Load, link: Link, at, at_home, place: Place
) -> Value:
    """The producer's value where the consumer's `load` reads it."""
    guard = None if load.guard is None else at[load.guard]
    images = {n: Ref(at[i.value]) if isinstance(i, Ref) else i for n, i in link.images.items()}
    value = _evaluate(
        to, producer, link.store.value, at_home, replace(place, images=images, guard=guard)
    )
    if load.exact and isinstance(to[value], Cast):
        value = to.emit(replace(to[value], must_round=True))
    if guard is None:
        return value
    return to.op("where", guard, value, to.const(load.fill, load.dtype))


def _evaluate(to: BodyBuilder, comp: Comp, wanted: Value, at_home, place: Place) -> Value:
    """Value `wanted` of `comp` at `place`; reductions are the same everywhere in a row, so they
    come from home, and their arguments are not computed again."""
    needed, at = _needed_beside_reductions(comp, wanted), []
    for value, instr in enumerate(comp.body[: wanted + 1]):
        if value not in needed:
            at.append(None)
        elif isinstance(instr, (Reduce, Scan)):
            at.append(at_home[value])
        else:
            at.append(copy_instr(to, instr, at, place))
    return at[wanted]


def _needed_beside_reductions(comp: Comp, wanted: Value) -> set[Value]:
    """What `wanted` is computed from, up to the nearest reductions."""
    needed = {wanted}
    for value in range(wanted, -1, -1):
        if value in needed and not isinstance(comp.body[value], (Reduce, Scan)):
            needed.update(operands(comp.body[value]))
    return needed


def _without_points(comp: Comp) -> frozenset[str]:
    """The empty axes that nothing is reduced along: where there are any, nothing is stored."""
    return frozenset(a.name for a in comp.axes if a.extent == 0) - reduced_axes(comp)


def _checked(comp: Comp) -> Comp | Refusal:
    """`comp`, if it can be one kernel that stores every result exactly once."""
    frame = frame_of(comp)
    if frame is None:
        return Refusal(Reason.NO_FRAME, comp.name)
    axes = value_axes(comp.body)
    for reduction in frame.column_reductions:
        if not set(frame.columns) <= axes[comp.body[reduction].args[0]]:
            return Refusal(Reason.NO_FRAME, "a sum over rows of a value that has no columns")
    every, rows, columns = (frozenset(n) for n in (comp.extents, frame.rows, frame.columns))
    empty = _without_points(comp)
    for store in comp.stores:
        place = map_axes(store.index).union(*(axes[v] for v in store_operands(store)))
        if empty and not empty & place:
            return Refusal(Reason.PARTIAL_WRITE, f"{store.buffer}: the other has no elements")
        along = every if _may_be_repeated(store, axes) else place
        whole = along == every or (columns and along == rows)
        if not whole and not (frame.column_reductions and along <= columns):
            return Refusal(Reason.PARTIAL_STORE, store.buffer)
    return comp


def _only_sets_flags(comp: Comp) -> bool:
    """Whether it may as well run at more points than it has."""
    axes = value_axes(comp.body)
    return not _has_reductions(comp) and all(_may_be_repeated(s, axes) for s in comp.stores)


def _may_be_repeated(store: Store, axes: list[frozenset[str]]) -> bool:
    """Whether it stores one value to one place, at whatever points its guard holds."""
    return store.combine is None and not axes[store.value] and not map_axes(store.index)


def _reads_column_reduction(comp: Comp, links: Links, frame) -> bool:
    """Whether a linked value depends on a reduction over the rows."""
    axes = value_axes(comp.body)
    rows = set(frame.rows)
    return bool(rows) and any(not axes[l.store.value] & rows for l in links.values())


def _scan_is_moved(comp: Comp, links: Links, home: Home | None) -> bool:
    """Whether a prefix would be needed at other points than where it is computed, or would run
    over several axes."""
    scanned = {i.axis for i in comp.body if isinstance(i, Scan)}
    if any(home.images[a].as_axis is None for a in scanned):
        return True
    return any(link.images.get(a) != home.images[a] for link in links.values() for a in scanned)


def _has_reductions(comp: Comp) -> bool:
    return any(isinstance(i, (Reduce, Scan)) for i in comp.body)
