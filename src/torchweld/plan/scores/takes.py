"""Whether a target's templates take attention of given sizes, forward and backward: asked before a
joint graph is cut in two, since what is saved hangs on it (capture/scores.py)."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

from torchweld.capture.scores import Scores
from torchweld.core import dtypes
from torchweld.core.dtypes import DType
from torchweld.core.options import Options
from torchweld.ir.affine import axis
from torchweld.ir.build import BodyBuilder
from torchweld.ir.nodes import Axis, Buffer, Comp, Graph, Load, Store, Value, map_axes
from torchweld.ir.normal_form import normalised
from torchweld.ir.views import contiguous_strides
from torchweld.plan.scores.offer import Desk
from torchweld.targets.rates import library_rate
from torchweld.targets.target import Target
from torchweld.templates.gemm.choice import choose

# Buffers of a sample by their axes: b batch, i rows, l keys, d and x depth, e and z columns.
_PLACES = {
    "q": "bid", "k": "bld", "v": "ble", "o": "bie", "do": "bie", "m": "bi", "t": "bi", "D": "bi",
    "dq": "bix", "dk": "blx", "dv": "blz", "db": "il",
}  # fmt: skip
_WIDE = ("m", "t", "D")
# With a bias, training makes the scores four times more in place of five passes over them. On a CPU
# that pays from where the allocator takes new memory for each: one thread of a Zen 4, forward and
# backward with scores in memory and without, in ms: 8 heads of 1024 keys 220 and 208, 16 heads of
# 512 51 and 106, 64 heads of 128 17 and 29.
_NEW_MEMORY = 32 << 20  # bytes: M_MMAP_THRESHOLD of glibc at most
_PRODUCTS, _PASSES = 3, 10  # forward and backward: pairs of products, reads and writes of scores
_TILE = (128, 64)  # rows and keys of a GPU's program, which takes the batch in turn


@lru_cache(maxsize=256)
def taken_by(scores: Scores, target: Target) -> bool:
    """Whether templates of `target` take the forward, the gradient of the queries, and those of
    keys and values."""
    if scores.turns > 1 and not _pays(scores, target):
        return False
    if min(scores.batch, scores.rows, scores.keys, scores.depth, scores.columns) < 2:
        return False
    sample = _Sample(scores)
    graph = Graph("sample", (), sample.buffers, (), (), ())
    desk = Desk(graph, target, Options(), choose)
    made: list[Callable[[], Comp]] = [sample.forward, sample.queries, sample.keys]
    made += [sample.sums] if scores.turns > 1 else []
    seconds = 0.0
    for make in made:
        kernel = desk.kernel(make())
        if isinstance(kernel, str):
            return False
        seconds += kernel[1]
    return not scores.again or seconds <= _apart_s(scores, sample.kind, target)


def _apart_s(scores: Scores, kind: DType, target: Target) -> float:
    """What the products take on a CPU, and the passes over scores in memory, where these are
    better: kernels of ours make nine products where saved scores leave six, and those of 16 bits in
    float32. Infinite where scores are to be taken out of memory. Forward and backward on one thread
    of a Zen 4, ms, saved and made again: 16 heads of 512 keys 48 and 61, of bfloat16 22 and 58;
    8 of 1024, which is new memory each time, 126 and 117, of bfloat16 58 and 107."""
    elements = scores.batch * scores.rows * scores.keys
    rate = library_rate(target.rates, kind)
    is_new = kind == dtypes.f32 and elements * kind.bytes >= _NEW_MEMORY
    if target.kind != "cpu" or rate is None or is_new:
        return math.inf
    products = _PRODUCTS * elements * (scores.depth + scores.columns)
    return products / rate + _PASSES * elements * kind.bytes / target.dram_bytes_per_s


def _pays(scores: Scores, target: Target) -> bool:
    """Whether a bias may have its gradient made of scores that are made again."""
    if target.kind == "cpu":
        elements = scores.batch * scores.rows * scores.keys
        return elements * scores.dtype.itemsize >= _NEW_MEMORY
    tiles = -(-scores.rows // _TILE[0]) * -(-scores.keys // _TILE[1])
    return 2 * tiles * scores.batch // scores.turns >= target.units


class _Sample:
    """Attention of the sizes and types of `scores`, plain."""

    def __init__(self, scores: Scores) -> None:
        self.softmax, self.kind = scores.softmax, dtypes.from_torch(scores.dtype)
        self.extents = {
            "b": scores.batch, "i": scores.rows, "l": scores.keys, "d": scores.depth,
            "e": scores.columns, "x": scores.depth, "z": scores.columns,
        }  # fmt: skip
        self.buffers = {
            name: self._buffer(name, places, scores) for name, places in _PLACES.items()
        }
        self.body = BodyBuilder()

    def _buffer(self, name: str, places: str, scores: Scores) -> Buffer:
        shape = tuple(self.extents[a] for a in places)
        dtype = dtypes.f32 if name in _WIDE else self.kind
        return Buffer(name, shape, dtype, contiguous_strides(shape), str(scores.device))

    def forward(self) -> Comp:
        self.body = BodyBuilder()
        x, body = self._scores(), self.body
        if self.softmax:
            top = body.reduce("max", (x,), ("l",))
            weight = body.op("exp", body.op("sub", x, top))
            total = body.reduce("sum", (weight,), ("l",))
            share = body.op("div", weight, total)
            stored = {"o": self._sum(share, "v", "l"), "m": top, "t": total}
        else:
            stored = {"o": self._sum(body.op("sigmoid", x), "v", "l")}
        return self._comp(stored, "l")

    def queries(self) -> Comp:
        self.body = BodyBuilder()
        _, gradient = self._backward()
        return self._comp({"dq": self._sum(gradient, "k", "l", d="x")}, "l")

    def keys(self) -> Comp:
        self.body = BodyBuilder()
        share, gradient = self._backward()
        dk, dv = self._sum(gradient, "q", "i", d="x"), self._sum(share, "do", "i", e="z")
        return self._comp({"dk": dk, "dv": dv}, "i")

    def sums(self) -> Comp:
        self.body = BodyBuilder()
        _, gradient = self._backward()
        return self._comp({"db": self.body.reduce("sum", (gradient,), ("b",))}, "b")

    def _backward(self) -> tuple[Value, Value]:
        body, x = self.body, self._scores()
        dp = self._product("do", "v", "e")
        if not self.softmax:
            share = body.op("sigmoid", x)
            return share, body.op("mul", share, dp)
        share = body.op("exp", body.op("sub", x, self._load("m")))
        share = body.op("div", share, self._load("t"))
        return share, body.op("mul", share, body.op("sub", dp, self._load("D")))

    def _load(self, name: str, **renamed: str) -> Value:
        index = tuple(axis(renamed.get(a, a)) for a in _PLACES[name])
        return self.body.widen(self.body.load(name, index, self.buffers[name].dtype))

    def _product(self, left: str, right: str, over: str) -> Value:
        factors = self.body.op("mul", self._load(left), self._load(right))
        return self.body.reduce("sum", (factors,), (over,))

    def _scores(self) -> Value:
        scale = self.body.const(0.125, dtypes.compute(self.kind))
        return self.body.op("mul", self._product("q", "k", "d"), scale)

    def _sum(self, weight: Value, name: str, over: str, **renamed: str) -> Value:
        factors = self.body.op("mul", weight, self._load(name, **renamed))
        return self.body.reduce("sum", (factors,), (over,))

    def _comp(self, stored: dict[str, Value], keys: str) -> Comp:
        stores = tuple(
            Store(n, tuple(map(axis, _PLACES[n])), self.body.cast(v, self.buffers[n].dtype))
            for n, v in stored.items()
        )
        body = self.body.body
        comp = Comp("sample", tuple(Axis(n, e) for n, e in self.extents.items()), body, stores)
        return normalised(_without_idle_axes(comp), keys)


def _without_idle_axes(comp: Comp) -> Comp:
    used = frozenset().union(*(map_axes(i.index) for i in comp.body if isinstance(i, Load)))
    axes = tuple(a for a in comp.axes if a.name in used)
    return Comp(comp.name, axes, comp.body, comp.stores)
