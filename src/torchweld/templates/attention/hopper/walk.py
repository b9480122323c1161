"""What a group of warps does with its rows, block of keys by block of keys.

Where registers allow it, the tensor cores make the outer products of one block while the group
works on the scores of the next (Shah et al., "FlashAttention-3", 2024):

    s = a b[0]^T;  p = share of s
    for each further block:
        s = a b^T                both products are under way ...
        o += p v[before]
        p' = share of s          ... and the second still is here
        o = o * kept;  p = p'
    o += p v[last]

Gradients of keys and values have two results, which leave registers for one block only. There each
product begins as soon as what it multiplies is known, and all end before the next block:

    for each block:
        s = a b^T;  ds = v do^T  both products are under way ...
        p = share of s           ... and the second still is here
        o += p do                under way ...
        p' = share of s and ds   ... here
        o' += p' b
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from torchweld.codegen.gluon.names import AFTER_LOADS
from torchweld.codegen.triton.scalars import TYPES
from torchweld.core import dtypes
from torchweld.ir.nodes import Load, Value, needed, operands
from torchweld.templates.attention.gpu.generate import is_guarded, store
from torchweld.templates.attention.gpu.keys import limit
from torchweld.templates.attention.gpu.schedule import padded
from torchweld.templates.attention.gpu.tiles import Face, Tiles
from torchweld.templates.attention.gpu.walk import arguments, hoist, masked, rising
from torchweld.templates.attention.hopper.factors import Factors
from torchweld.templates.attention.nest import Outer, Walk
from torchweld.templates.gemm.hopper.tiles import Memory
from torchweld.templates.pointwise_reduce.gpu.reduce import combined, identity
from torchweld.templates.pointwise_reduce.gpu.walks import rounded

_NOTHING = 'float("-inf")'


def consume(t: Tiles, factors: Factors, columns: tuple[int, ...]) -> None:
    """The body of `consume` after its place: `tile` is the group's, `first` and `last` are the
    program's. `columns`: of each result."""
    work = _Group(t, factors, columns)
    first, loops = work.loops()
    for face in (t.whole, t.score):
        face.copied = {v: f"{m.matrix('stage', 'keys')}.load(SCORES)"
                       for v, m in factors.numbers.items()}  # fmt: skip
    covered = rounded(t.rows, t.schedule.tile_rows)
    t.score.block("r", "tile", t.schedule.block_rows, t.schedule.rows, covered)
    work.start()
    hoist(t, work.walk)
    known = dict(t.score.known)
    work.line("mbarrier.wait(ready.index(0), turn & 1)")
    with t.score.indented("if first < last:"):
        if t.schedule.overlapped:
            work.first(first)
        for header, part in loops:
            t.score.known = dict(known)
            with t.score.indented(header):
                (work.overlapped if t.schedule.overlapped else work.whole)(part)
                work.line("step += 1")
        if t.schedule.overlapped:
            work.last()
    work.line("mbarrier.arrive(used.index(0), count=1)")
    t.score.known = dict(known)
    work.finish(covered)


@dataclass(frozen=True, slots=True)
class _Block:
    """What a loop over blocks is printed for. `covered`: the keys of its blocks, None if some may
    be out of bounds; `face`: that of its scores."""

    face: Face
    covered: int | None


@dataclass(frozen=True, slots=True)
class _Group:
    """`s<n>`: scores, `o<n>`: results, `p<n>`: what is multiplied for them, as operands; `share<n>`
    as they are computed."""

    t: Tiles
    factors: Factors
    columns: tuple[int, ...]

    @property
    def walk(self) -> Walk:
        (walk,) = self.t.nest.walks
        return walk

    @property
    def outers(self) -> dict[Value, tuple[int, Outer]]:
        return {o.value: (n, o) for n, o in enumerate(self.t.nest.outers)}

    def line(self, text: str) -> None:
        self.t.score.line(text)

    def loops(self) -> tuple[_Block, list[tuple[str, _Block]]]:
        """How the first block is printed, and the loops over the others (over all, if products do
        not overlap): those that a mask cuts, whole ones, and cut ones again."""
        t, k, s, bound = self.t, self.t.score, self.t.schedule, self.t.nest.bound
        every = rounded(t.keys, s.block_keys)
        whole, cut = _Block(t.whole, t.keys), _Block(k, every)
        is_masked = bound.low is not None or bound.high is not None
        begin = "first + 1" if s.overlapped else "first"
        if not is_masked and every == t.keys:
            return whole, [(f"for at in range({begin}, last):", whole)]
        k.line(f"inner, outer = {begin}, {t.keys // s.block_keys}")
        limit(t, "inner", bound.low, most=True, up=True)
        limit(t, "outer", bound.high, most=False, up=False)
        k.line(f"inner = tl.minimum(tl.maximum(inner, {begin}), last)")
        k.line("outer = tl.maximum(tl.minimum(outer, last), inner)")
        loops = [("for at in range(inner, outer):", whole)]
        if bound.low is not None:
            loops.insert(0, (f"for at in range({begin}, inner):", cut))
        if bound.high is not None or every != t.keys:
            loops.append(("for at in range(outer, last):", cut))
        return (cut if is_masked or t.keys < s.block_keys else whole), loops

    def start(self) -> None:
        for value in self.walk.reductions:
            if value not in self.outers:
                start = identity(self.t.score.body[value].monoid, dtypes.f32)
                layout = "gl.SliceLayout(1, SCORES)"
                self.line(f"acc{value} = gl.full((ROWS,), {start}, gl.float32, {layout})")
        for n, columns in enumerate(self.columns):
            self.line(f"o{n} = gl.zeros((ROWS, {columns}), gl.float32, RESULT_{columns})")

    # blocks

    def first(self, part: _Block) -> None:
        self.line("at, stage = first, step % STAGES")
        self._await((*self.factors.keys, *self._numbers), "stage", "step // STAGES & 1")
        self._multiply_keys(part)
        self._wait(0, self._scores)
        self._release(self.factors.only_inner, "stage")
        for value in self.walk.reductions:
            self._take(part.face, value)
        self._release(self._numbers, "stage")
        self._turn(range(len(self.columns)))
        self.line("step += 1")

    def overlapped(self, part: _Block) -> None:
        self.line("stage, old = step % STAGES, (step - 1) % STAGES")
        self._await((*self.factors.keys, *self._numbers), "stage", "step // STAGES & 1")
        self._multiply_keys(part)
        self._multiply_before()
        self._wait(len(self.columns), self._scores)
        self._release(self.factors.only_inner, "stage")
        for value in self.walk.reductions:
            self._take(part.face, value)
        self._release(self._numbers, "stage")
        self._wait(0, self._results)
        self._release(dict.fromkeys(self.factors.values), "old")
        for n in range(len(self.columns)):
            self._rescale(n)
        self._turn(range(len(self.columns)))

    def last(self) -> None:
        self.line("old = (step - 1) % STAGES")
        self._multiply_before()
        self._wait(0, self._results)
        self._release(dict.fromkeys(self.factors.values), "old")

    def _multiply_before(self) -> None:
        """Begins the outer products of the block before."""
        self._await(self.factors.only_outer, "old", "(step - 1) // STAGES & 1")
        for n in range(len(self.columns)):
            self._multiply_values(n, "old")

    def whole(self, part: _Block) -> None:
        self.line("stage = step % STAGES")
        self._await(self.factors.rings, "stage", "step // STAGES & 1")
        self._multiply_keys(part)
        arrived, begun = 0, 0
        for value, inners in self._in_order(part.face):
            if inners > arrived:
                self._wait(len(self._scores) - inners + begun, self._scores[arrived:inners])
                arrived = inners
            self._take(part.face, value)
            if value in self.outers:
                n, _ = self.outers[value]
                self._rescale(n)
                self._turn([n])
                self._multiply_values(n, "stage")
                begun += 1
        self._wait(0, self._results)
        self._release(self.factors.rings, "stage")

    def _in_order(self, face: Face) -> list[tuple[Value, int]]:
        """The reductions, each with how many of the inner products have to be over, those that
        need the fewest first. Statistics stay before what is relative to them."""
        every = [(v, self._needs(face, v)) for v in self.walk.reductions]
        if any(value not in self.outers for value, _ in every):
            return [(value, len(self._scores)) for value, _ in every]
        return sorted(every, key=lambda pair: pair[1])

    def _needs(self, face: Face, value: Value) -> int:
        _, outer = self.outers.get(value, (0, None))
        weight = outer.weight if outer else face.arg(value)
        reached = needed(face.body, [face.image.get(weight, weight)], stop=self.t.score.known)
        inners = enumerate(self.t.nest.inners, 1)
        return max((n for n, inner in inners if inner.value in reached), default=0)

    # products

    @property
    def _numbers(self) -> tuple[Memory, ...]:
        return tuple(dict.fromkeys(self.factors.numbers.values()))

    @property
    def _scores(self) -> list[str]:
        return [f"s{n}" for n in range(len(self.factors.keys))]

    @property
    def _results(self) -> list[str]:
        """With the operands, whose registers the products read until they are done."""
        return [f"{letter}{n}" for n in range(len(self.columns)) for letter in "op"]

    def _await(self, memories: Iterable[Memory], stage: str, parity: str) -> None:
        for memory in dict.fromkeys(memories):
            self.line(f"mbarrier.wait(ready_{memory.name}.index({stage}), {parity})")

    def _release(self, memories: Iterable[Memory], stage: str) -> None:
        memories = tuple(memories)
        if not set(self._numbers).isdisjoint(memories):
            self.line(AFTER_LOADS)
        for memory in memories:
            self.line(f"mbarrier.arrive(empty_{memory.name}.index({stage}), count=1)")

    def _wait(self, pending: int, names: list[str]) -> None:
        """Until no more than `pending` products are under way."""
        text = ", ".join(names)
        deps = f"({text},)" if len(names) == 1 else f"({text})"
        self.line(f"{text} = warpgroup_mma_wait({pending}, deps={deps})")

    def _multiply_keys(self, part: _Block) -> None:
        """Begins the inner products of a block; where its keys are, and what is loaded for each
        score meanwhile."""
        face, s = part.face, self.t.schedule
        for n, (rows, keys) in enumerate(zip(self.factors.rows, self.factors.keys)):
            left, right = rows.matrix("GROUP", "depth"), keys.matrix("stage", "keys")
            self.line(f"s{n} = gl.zeros((ROWS, KEYS), gl.float32, SCORES)")
            self.line(f"s{n} = warpgroup_mma({left}, {right}, s{n}, is_async=True, use_acc=False)")
        face.known = dict(self.t.score.known)
        face.block("lc", "at", s.block_keys, s.keys, part.covered)
        inners = {i.value for i in self.t.nest.inners}
        stop = {*face.known, *inners}
        for value in sorted(needed(face.body, arguments(self.t, face, self.walk), stop=stop)):
            instr = face.body[value]
            plain = isinstance(instr, Load) and not operands(instr)
            if plain and face.along(face.axes[value]) == "rc":
                face.value(value)
        face.known |= {i.value: f"s{n}" for n, i in enumerate(self.t.nest.inners)}

    def _multiply_values(self, n: int, stage: str) -> None:
        values = self.factors.values[n].matrix(stage, "depth")
        self.line(f"o{n} = warpgroup_mma(p{n}, {values}, o{n}, is_async=True)")

    def _turn(self, results: Iterable[int]) -> None:
        """Weights as operands: no thread gives anything to another."""
        for n in results:
            self.line(f"p{n} = gl.convert_layout(share{n}, SHARES_{self.columns[n]})")

    # scores

    def _take(self, face: Face, value: Value) -> None:
        """A statistic with a block taken in, or what the block's values are multiplied by."""
        bases = dict(self.walk.rescaled)
        if value in self.outers:
            n, outer = self.outers[value]
            dtype = TYPES[face.body[outer.key].dtype]
            face.line(f"share{n} = {masked(face, 'sum', outer.weight)}.to({dtype})")
        elif face.body[value].monoid == "sum":
            kept = f" * kept{bases[value]}" if value in bases else ""
            tile = masked(face, "sum", face.arg(value))
            face.line(f"acc{value} = acc{value}{kept} + gl.sum({tile}, 1)")
        else:
            self._extreme(face, value)

    def _extreme(self, face: Face, value: Value) -> None:
        """As in Triton (gpu/walk.py), but that statistics have one dimension."""
        x, scale = rising(face, face.arg(value))
        tile = masked(face, "max", x)
        face.helper("_reduce_maximum(")
        found = f"gl.reduce({tile}, 1, _reduce_maximum)" + (f" * {scale!r}" if scale != 1.0 else "")
        face.line(f"new = {combined(face, 'max', dtypes.f32, f'acc{value}', found)}")
        if any(base == value for _, base in self.walk.rescaled):
            face.line(f"base{value} = tl.where(new == {_NOTHING}, 0.0, new)")
            face.line(f"kept{value} = exp_flushed(acc{value} - base{value})")
            face.known[value] = f"base{value}[:, None]"
        face.line(f"acc{value} = new")

    def _rescale(self, n: int) -> None:
        base = dict(self.walk.rescaled).get(self.t.nest.outers[n].value)
        if base is not None:
            self.line(f"o{n} = o{n} * {_wide(f'kept{base}', self.columns[n])}")

    # what follows

    def finish(self, covered: int | None) -> None:
        t, s = self.t, self.t.schedule
        for columns, end in t.ends.items():
            width = padded(t.points(columns))
            end.block(end.dimension("r"), "tile", s.block_rows, s.rows, covered)
            end.block(end.dimension("c"), "", width, columns, width)
        for total, base in self.walk.rescaled:
            if not is_guarded(t.comp, base):
                self._restore(total, base)
        for value in self.walk.reductions:
            self._know(value)
        store(t)

    def _know(self, value: Value) -> None:
        """The result of a walk over all keys, in each layout."""
        if value in self.outers:
            n, outer = self.outers[value]
            self.t.ends[outer.columns].known[value] = f"o{n}"
            return
        self.t.score.known[value] = f"acc{value}[:, None]"
        for columns, end in self.t.ends.items():
            end.known[value] = _wide(f"acc{value}", padded(self.t.points(columns)))

    def _restore(self, total: Value, base: Value) -> None:
        """A sum of exp(x - max(x)) is NaN where the maximum is -inf, unless the Comp has zero in
        its place."""
        name, top = f"acc{total}", f"acc{base}"
        if total in self.outers:
            n, _ = self.outers[total]
            name, top = f"o{n}", _wide(top, self.columns[n])
        self.line(f'{name} = tl.where({top} == {_NOTHING}, float("nan"), {name})')


def _wide(name: str, columns: int) -> str:
    """A statistic of the scores, along so many columns of a result."""
    return f"gl.convert_layout({name}, gl.SliceLayout(1, RESULT_{columns}))[:, None]"
