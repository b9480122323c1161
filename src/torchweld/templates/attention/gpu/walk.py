"""One walk over the keys of a tile of rows: scores block by block, running statistics, running
outer contractions. When a running maximum rises, what was summed relative to it is rescaled (online
softmax: Milakov and Gimelshein 2018, Dao et al. 2022)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torchweld.codegen.triton.scalars import TYPES
from torchweld.codegen.triton.wide import BF16X6
from torchweld.core import dtypes
from torchweld.ir.affine import Affine, axis
from torchweld.ir.nodes import Const, Load, Op, Reduce, Scan, Value, needed, operands
from torchweld.templates.attention.gpu import keys
from torchweld.templates.attention.gpu.schedule import padded
from torchweld.templates.attention.gpu.tiles import Face, Tiles, plain_load
from torchweld.templates.attention.nest import Inner, Outer, Walk
from torchweld.templates.pointwise_reduce.gpu.reduce import combined, identity, reduced


def walk(t: Tiles, w: Walk) -> None:
    """Afterwards `acc<value>` holds each reduction of `w` (of a share of the keys, if they are
    shared)."""
    for value in w.reductions:
        _start(t, value)
    hoist(t, w)
    with _around(t):
        for part in keys.parts(t):
            with _block(t, part):
                scores_of(t, part.face, w)
                for value in w.reductions:
                    _reduce(t, part.face, w, value)


def factor(face: Face, value: Value) -> str:
    """The tile of a factor, zero out of bounds."""
    if value in face.known:
        return face.known[value]
    mask = face.mask("rc")
    if plain_load(face, value) is not None:
        zero = f", mask={mask}, other=0.0" if mask else ""
        address = face.address(face.accesses.loads[value], "rc")
        return face.assign(value, f"tl.load({address}{zero})")
    text = face.value(value)
    return face.assign(value, f"tl.where({mask}, {text}, 0.0)" if mask else text)


def dot(face: Face, value: Value, left: str, right: str, total: str = "") -> str:
    """A product on tensor cores."""
    more = [total] if total else []
    if face.body[value].dtype == dtypes.f32:
        more.append(BF16X6)
    return f"tl.dot({', '.join([left, right, *more])})"


def _start(t: Tiles, value: Value) -> None:
    k, s = t.score, t.schedule
    outer = _outer(t, value)
    width = padded(t.points(outer.columns)) if outer else 1
    start = identity(k.body[value].monoid, dtypes.f32)
    k.line(f"acc{value} = tl.full([{s.block_rows}, {width}], {start}, tl.float32)")


def _outer(t: Tiles, value: Value) -> Outer | None:
    return next((o for o in t.nest.outers if o.value == value), None)


def arguments(t: Tiles, face: Face, w: Walk) -> list[Value]:
    """What has to be known of each score."""
    outers = {o.value: o.weight for o in t.nest.outers}
    found = (outers[v] if v in outers else t.score.arg(v) for v in w.reductions)
    return [face.image.get(v, v) for v in found]


def hoist(t: Tiles, w: Walk) -> None:
    """Computes what is the same for all keys: scalars and values of a row."""
    k = t.score
    changing = {i.value for i in t.nest.inners} | set(w.reductions)
    found: set[Value] = set()
    for value in sorted(needed(k.body, arguments(t, k, w), stop={*k.known, *changing})):
        ready = all(v in found or v in k.known for v in operands(k.body[value]))
        same = k.along(k.axes[value]) in ("", "r") and not k.axes[value] & set(t.around)
        if ready and same and not isinstance(k.body[value], (Reduce, Scan)):
            found.add(value)
    k.compute(sorted(found - k.known.keys() - changing))


@contextmanager
def _around(t: Tiles) -> Iterator[None]:
    """Loops over the points of the axes of the keys that are not walked over in blocks."""
    k = t.score
    if not t.around:
        yield
        return
    with k.indented(f"for turn in range({t.count(t.around)}):"):
        k.line("around = tl.full((), turn, tl.int32)")
        k.split_axes("around", t.around)
        yield


@contextmanager
def _block(t: Tiles, part: keys.Part) -> Iterator[None]:
    """The body of a loop over blocks of keys. What becomes known in it is forgotten after it."""
    s, known = t.schedule, {id(f): dict(f.known) for f in t.in_blocks}
    t.whole.known = dict(t.score.known)
    header = f"for block in tl.range({part.first}, {part.last}, num_stages={part.stages}):"
    with t.score.indented(header):
        for name, face in (("lc", t.score), ("lr", next(iter(t.mixed.values()), None))):
            if face is not None:
                face.block(name, "block", s.block_keys, s.keys, part.covered)
        yield
    for face in t.in_blocks:
        face.known = known[id(face)]


def scores_of(t: Tiles, face: Face, w: Walk) -> None:
    """The inner contractions that the walk needs; what is loaded besides comes first."""
    inners = {i.value: i for i in t.nest.inners}
    wanted = needed(face.body, arguments(t, face, w), stop={*face.known, *inners})
    for value in sorted(wanted):
        instr = face.body[value]
        if isinstance(instr, Load) and not operands(instr) and value not in face.known:
            face.value(value)
    for inner in (inners[v] for v in sorted(wanted & inners.keys())):
        left = t.left[inner.depth].known[inner.row]
        text = dot(t.left[inner.depth], inner.row, left, _key_tile(t, inner, w))
        face.assign(inner.value, text)


def _key_tile(t: Tiles, inner: Inner, w: Walk) -> str:
    """The key factor of an inner contraction; the one of an outer, turned, if that is the same."""
    for outer in (o for o in t.nest.outers if o.value in w.reductions):
        if _turned(t, inner, outer):
            return f"tl.trans({factor(t.mixed[outer.columns], outer.key)})"
    return factor(t.right[inner.depth], inner.key)


def _turned(t: Tiles, inner: Inner, outer: Outer) -> bool:
    """Whether the key factor of `outer` has in its columns what that of `inner` has in its
    depth."""
    one, other = plain_load(t.score, inner.key), plain_load(t.score, outer.key)
    if one is None or other is None or one.buffer != other.buffer:
        return False
    names: dict[str, Affine] = {d: axis(c) for d, c in zip(inner.depth, outer.columns)}
    lengths = [[t.comp.extent(a) for a in axes] for axes in (inner.depth, outer.columns)]
    places = [e.substitute(names) if isinstance(e, Affine) else e for e in one.index]
    return lengths[0] == lengths[1] and tuple(places) == other.index


# reductions


def _reduce(t: Tiles, face: Face, w: Walk, value: Value) -> None:
    """Takes a block of keys in."""
    base = dict(w.rescaled).get(value)
    before = f"acc{value}" if base is None else f"acc{value} * kept{base}"
    if (outer := _outer(t, value)) is not None:
        weight = masked(face, "sum", outer.weight)
        dtype = face.body[outer.key].dtype
        narrow = weight if dtype == dtypes.f32 else f"{weight}.to({TYPES[dtype]})"
        tile = factor(t.mixed[outer.columns], outer.key)
        face.line(f"acc{value} = {dot(face, outer.key, narrow, tile, before)}")
    elif face.body[value].monoid == "sum":
        tile = masked(face, "sum", face.arg(value))
        face.line(f"acc{value} = {before} + tl.sum({tile}, axis=1, keep_dims=True)")
    else:
        _extreme(face, w, value)


def _extreme(face: Face, w: Walk, value: Value) -> None:
    """A running maximum; what is relative to it is told how much of it is kept. It counts as zero
    as long as there is nothing but -inf: exp(-inf - -inf) is no number."""
    monoid, arg = face.body[value].monoid, face.arg(value)
    x, scale = rising(face, arg)
    tile = masked(face, monoid, x)
    found = reduced(face, monoid, tile, 1) + (f" * {scale!r}" if scale != 1.0 else "")
    face.line(f"new = {combined(face, monoid, dtypes.f32, f'acc{value}', found)}")
    if any(base == value for _, base in w.rescaled):
        face.line(face.helper(f"base{value} = _finite(new)"))
        kept = face.operation("exp", "float", f"(acc{value} - base{value})")
        face.line(f"kept{value} = {kept}")
        face.known[value] = f"base{value}"
    face.line(f"acc{value} = new")


def rising(face: Face, value: Value) -> tuple[Value, float]:
    """x and c > 0 where a value is x * c: the largest product is that of the largest x."""
    instr = face.body[value]
    if isinstance(instr, Op) and instr.name == "mul":
        for x, c in (instr.args, instr.args[::-1]):
            const = face.body[c]
            if isinstance(const, Const) and 0 < const.value < float("inf"):
                return x, float(const.value)
    return value, 1.0


def masked(face: Face, monoid: str, value: Value) -> str:
    """A value of each score, the identity for keys out of bounds."""
    value = face.image.get(value, value)
    key = (monoid, value)
    if key in face.known:
        return face.known[key]
    text = face.value(value)
    if set(face.along(face.axes[value])) != set("rc"):
        text = f"tl.broadcast_to({text}, {face.shape('rc')})"
    if mask := face.mask("c"):
        text = f"tl.where({mask}, {text}, {identity(monoid, dtypes.f32)})"
        return face.assign(key, text)
    return text

