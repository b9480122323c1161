"""Reductions over groups of channels that lie innermost: first each channel by itself.

All such on a CPU; long norms on a GPU (`statistics.py`).

Of an image with channels last, a group is a few adjacent channels of every pixel, too few for a
vector; all channels of a pixel fill several.

    before: comp norm [n, g, c, p]     reduce.welford[c, p] x[n, p, C*g + c], then what follows
    after:  comp norm_channels [n, g, c, p]   store m, r, q: mean of each channel, what its rounding
                                              missed (on a CPU), and squares
            comp norm_groups [n, g, c]        those of each group, and what follows from them alone,
                                              stored for each of its channels
            comp norm [n, g, c, p]            the rest, pointwise

Chan's merge of equal counts is exact algebra. On a CPU eager's sums are in float64: what the means
miss in float32 would be most of the squares of values at a large offset. GroupNorm of
[2, 64, 56, 56] in 8 groups, one thread: 407 us in one kernel, 66 in these three.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

from torchweld.core import dtypes
from torchweld.ir.access import unmerged
from torchweld.ir.affine import Affine, axis
from torchweld.ir.build import BodyBuilder
from torchweld.ir.expand import moments, with_values
from torchweld.ir.nodes import (
    Buffer,
    Comp,
    Graph,
    Index,
    Node,
    Pick,
    Reduce,
    Scan,
    Store,
    Value,
    needed,
    operands,
    store_axes,
    store_operands,
    value_axes,
)

_MONOIDS = {"welford": 2, "sum": 1}  # their results
_WITH_MISSED = 3  # results of a welford whose mean comes with what its rounding missed
_MOST_CHANNELS = 64  # of a group; more fill vectors
_FEWEST_PIXELS = 16


@dataclass(frozen=True, slots=True)
class ChannelGroups:
    """Axes: `rows` (the last of them over groups), `channel` of a group, and `pixels`."""

    rows: tuple[str, ...]
    channel: str
    pixels: tuple[str, ...]

    @property
    def channels(self) -> tuple[str, ...]:
        """The axes of all channels."""
        return (*self.rows, self.channel)


def channels_before_groups(graph: Graph) -> Graph:
    """`graph` with such reductions in steps."""
    nodes: list[Node] = []
    buffers = dict(graph.buffers)
    for node in graph.nodes:
        groups = channel_groups(node, buffers) if isinstance(node, Comp) else None
        nodes.extend([node] if groups is None else in_steps(node, groups, buffers))
    return replace(graph, nodes=tuple(nodes), buffers=buffers)


# -- which --


def channel_groups(
    comp: Comp, buffers: Mapping[str, Buffer], read_alone: bool = False
) -> ChannelGroups | None:
    """The axes of a Comp that reduces groups of channels that lie innermost in all that it touches
    along the pixels, or in what it reads alone."""
    reductions = [i for i in comp.body if isinstance(i, Reduce)]
    if not reductions or not _are_independent(comp, reductions):
        return None
    columns = reductions[0].axes
    rows = tuple(a.name for a in comp.axes if a.name not in columns)
    if any(not isinstance(a.extent, int) for a in comp.axes) or not rows or len(columns) < 2:
        return None
    for group, channel in product(rows, columns):
        others = tuple(r for r in rows if r != group)
        groups = ChannelGroups((*others, group), channel, tuple(p for p in columns if p != channel))
        if _lie_innermost(comp, groups, buffers, read_alone):
            return groups
    return None


def _are_independent(comp: Comp, reductions: Sequence[Reduce]) -> bool:
    """Float reductions over the same axes, none of what another gives, and nothing unusual."""
    for instr in reductions:
        known = instr.monoid in _MONOIDS and instr.dtype == dtypes.f32
        if not known or set(instr.axes) != set(reductions[0].axes):
            return False
        if any(isinstance(comp.body[v], Reduce) for v in needed(comp.body, instr.args)):
            return False
    plain = not any(isinstance(i, (Scan, Index)) for i in comp.body)
    return plain and all(s.combine is None and store_operands(s) == (s.value,) for s in comp.stores)


def _lie_innermost(
    comp: Comp, groups: ChannelGroups, buffers: Mapping[str, Buffer], read_alone: bool
) -> bool:
    """Whether all that is touched along the pixels has the channels of all groups side by side."""
    channels = comp.extent(groups.channel)
    if not 1 < channels < _MOST_CHANNELS:
        return False
    if math.prod(comp.extent(p) for p in groups.pixels) < _FEWEST_PIXELS:
        return False
    accesses = unmerged(comp, buffers)
    touched = accesses.loads.values() if read_alone else accesses.all
    images = [a for a in touched if a.offset.axes & set(groups.pixels)]
    pair = groups.channel, groups.rows[-1]
    steps = [tuple(map(a.offset.coefficient, pair)) for a in images if not a.refs]
    return steps == [(1, channels)] * len(images)


# -- the steps --


@dataclass(frozen=True, slots=True)
class _Cut:
    """Values of a Comp: those that are reduced, `merged` ones that follow from these and are equal
    for all pixels, and which of those the stores of pixels need; stores of groups and of pixels.
    `exact`: means are passed on with what their rounding missed."""

    comp: Comp
    groups: ChannelGroups
    reduced: tuple[Value, ...]
    merged: frozenset[Value]
    passed_on: tuple[Value, ...]
    of_groups: tuple[Store, ...]
    of_pixels: tuple[Store, ...]
    exact: bool

    @property
    def place(self) -> tuple[Affine, ...]:
        """Where a number of each channel is kept."""
        return tuple(map(axis, self.groups.channels))

    @property
    def pixels(self) -> int:
        return math.prod(self.comp.extent(p) for p in self.groups.pixels)

    def parts(self, value: Value) -> list[str]:
        """The buffers of a reduction's results, of each channel."""
        return [f"{self.comp.name}_part{value}_{item}" for item in range(_results(self, value))]

    def passed(self, value: Value) -> str:
        return f"{self.comp.name}_value{value}"


def _results(cut: _Cut, value: Value) -> int:
    exact = cut.exact and _is_tuple(cut.comp, value)
    return _WITH_MISSED if exact else _MONOIDS[cut.comp.body[value].monoid]


def in_steps(comp: Comp, groups: ChannelGroups, buffers: dict[str, Buffer]) -> list[Comp]:
    """The three Comps of one, two where nothing is left to do for each pixel; adds what they pass
    on to `buffers`."""
    like = buffers[comp.writes[0]]
    cut = _cut(comp, groups, exact=like.device == "cpu")
    passed = {cut.passed(v): comp.body[v].dtype for v in cut.passed_on}
    passed |= {name: dtypes.f32 for v in cut.reduced for name in cut.parts(v)}
    shape = tuple(comp.extent(a) for a in groups.channels)
    strides = tuple(math.prod(shape[k + 1 :]) for k in range(len(shape)))
    buffers |= {n: Buffer(n, shape, dtype, strides, like.device) for n, dtype in passed.items()}
    return [_channels(cut), _merged(cut), *([_pixels(cut)] if cut.of_pixels else [])]


def _cut(comp: Comp, groups: ChannelGroups, exact: bool) -> _Cut:
    axes = value_axes(comp.body)
    reduced = tuple(v for v, i in enumerate(comp.body) if isinstance(i, Reduce))
    follows: set[Value] = set(reduced)
    for v, instr in enumerate(comp.body):
        if axes[v] <= set(groups.channels) and follows.intersection(operands(instr)):
            follows.add(v)
    merged = frozenset(v for v in follows if not _is_tuple(comp, v))
    of_groups = tuple(
        s for s in comp.stores if s.value in merged and store_axes(comp, s, axes) <= {*groups.rows}
    )
    of_pixels = tuple(s for s in comp.stores if s not in of_groups)
    behind = needed(comp.body, (s.value for s in of_pixels), stop=merged)
    passed_on = tuple(sorted(behind & merged))
    return _Cut(comp, groups, reduced, merged, passed_on, of_groups, of_pixels, exact)


def _is_tuple(comp: Comp, value: Value) -> bool:
    instr = comp.body[value]
    return isinstance(instr, Reduce) and _MONOIDS[instr.monoid] > 1


def _channels(cut: _Cut) -> Comp:
    """Each reduction over the pixels alone."""
    b, images, stores = BodyBuilder(), {}, []
    for v in sorted(needed(cut.comp.body, cut.reduced)):
        if v in cut.reduced:
            parts = _of_channel(cut, b, v, images)
            stores += [Store(n, cut.place, part) for n, part in zip(cut.parts(v), parts)]
        else:
            images[v] = b.emit(with_values(cut.comp.body[v], images))
    name = f"{cut.comp.name}_channels"
    return replace(cut.comp, name=name, body=b.body, stores=tuple(stores))


def _of_channel(cut: _Cut, b: BodyBuilder, value: Value, images) -> tuple[Value, ...]:
    """The results of one reduction over the pixels."""
    instr = replace(cut.comp.body[value], axes=cut.groups.pixels)
    if not _is_tuple(cut.comp, value):
        return (b.emit(with_values(instr, images)),)
    if cut.exact:
        return moments(b, images[instr.args[0]], instr, cut.pixels)
    both = b.emit(with_values(instr, images))
    return b.pick(both, 0), b.pick(both, 1)


def _merged(cut: _Cut) -> Comp:
    """The reductions of groups, and what follows from them alone."""
    b, images = BodyBuilder(), {}
    for v in cut.reduced:
        images |= _of_group(cut, b, v)
    for v in sorted(needed(cut.comp.body, cut.merged, stop=images) - images.keys()):
        images[v] = b.emit(with_values(cut.comp.body[v], images))
    stores = [replace(s, value=images[s.value]) for s in cut.of_groups]
    stores += [Store(cut.passed(v), cut.place, images[v]) for v in cut.passed_on]
    axes = tuple(a for a in cut.comp.axes if a.name in cut.groups.channels)
    name = f"{cut.comp.name}_groups"
    return replace(cut.comp, name=name, axes=axes, body=b.body, stores=tuple(stores))


def _of_group(cut: _Cut, b: BodyBuilder, value: Value) -> dict[Value, Value]:
    """One reduction from those of the channels: what its readers read."""
    over = (cut.groups.channel,)
    parts = tuple(b.load(name, cut.place, dtypes.f32) for name in cut.parts(value))
    if not _is_tuple(cut.comp, value):
        return {value: b.reduce("sum", parts, over)}
    results = _of_channels(cut, b, over, *parts)
    body = cut.comp.body
    picks = {v: i for v, i in enumerate(body) if isinstance(i, Pick) and i.arg == value}
    return {v: results[i.item] for v, i in picks.items()}


def _of_channels(cut: _Cut, b: BodyBuilder, over, mean: Value, *rest: Value) -> tuple[Value, Value]:
    """Mean and squares of a group, from those of its channels: what the group's own mean misses is
    added to it and taken from the squares, as in ir/expand.py."""
    *missed, squares = rest
    channels = b.const(float(cut.comp.extent(cut.groups.channel)), dtypes.f32)
    pixels = b.const(float(cut.pixels), dtypes.f32)
    near = b.reduce("sum", (b.op("div", mean, channels),), over)
    away = b.op("sub", mean, near)
    for value in missed:
        away = b.op("add", away, value)
    around = b.op("mul", b.op("mul", away, away), pixels)
    total = b.reduce("sum", (b.op("add", squares, around),), over)
    if not missed:
        return near, total
    off = b.reduce("sum", (away,), over)
    share = b.op("div", off, channels)
    beyond = b.op("mul", b.op("mul", off, share), pixels)
    return b.op("add", near, share), b.op("sub", total, beyond)


def _pixels(cut: _Cut) -> Comp:
    """The rest, pointwise."""
    b = BodyBuilder()
    images = {v: b.load(cut.passed(v), cut.place, cut.comp.body[v].dtype) for v in cut.passed_on}
    stored = [s.value for s in cut.of_pixels]
    for v in sorted(needed(cut.comp.body, stored, stop=images) - images.keys()):
        images[v] = b.emit(with_values(cut.comp.body[v], images))
    stores = tuple(replace(s, value=images[s.value]) for s in cut.of_pixels)
    return replace(cut.comp, body=b.body, stores=stores)
