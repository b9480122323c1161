"""Score nests that the tests share: attention with many score functions, forward and backward.

Queries are [b, h * g, i, d], keys and values [b, h, l, d]. `lse` is what a forward pass saves, and
`delta` the sum of its result times its gradient, over a row.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from torchweld.core import dtypes
from torchweld.ir.affine import Affine, axis, constant
from torchweld.ir.build import BodyBuilder
from torchweld.ir.nodes import Axis, Buffer, Comp, Reduce, Store, Value
from torchweld.ir.size import Size, product, symbol
from torchweld.templates.attention.nest import Bound, Inner, Nest, Outer, Walk
from triton_cases import Case


@dataclass(frozen=True)
class Sizes:
    """`heads` of queries share each of `shared` heads of keys; a str is a symbol."""

    batch: int = 1
    shared: int = 2
    heads: int = 1
    queries: int | str = 100
    keys: int | str = 100
    depth: int = 64
    columns: int = 64

    def extents(self) -> dict[str, Size]:
        names = "bhgilde"
        sizes = (self.batch, self.shared, self.heads, self.queries, self.keys, self.depth,
                 self.columns)  # fmt: skip
        return {n: symbol(s) if isinstance(s, str) else s for n, s in zip(names, sizes)}


@dataclass(frozen=True)
class NestCase(Case):
    nest: Nest | None = None


class Body:
    """A body under construction, and what it reads and writes."""

    def __init__(self, sizes: Sizes, dtype: str) -> None:
        self.sizes, self.dtype, self.b = sizes, dtypes.BY_NAME[dtype], BodyBuilder()
        self.extents = sizes.extents()
        self.buffers: dict[str, Buffer] = {}
        self.stores: list[Store] = []
        self.at = {
            n: constant(0) if e == 1 else axis(n) for n, e in self.extents.items()
        }

    def index(self, dims: str) -> tuple[Affine, ...]:
        """"H": a head of the queries."""
        head = self.at["h"] * self.extents["g"] + self.at["g"]
        return tuple(head if d == "H" else self.at[d] for d in dims)

    def buffer(self, name: str, dims: str, dtype) -> None:
        every = self.extents | {"H": self.extents["h"] * self.extents["g"]}
        shape = tuple(every[d] for d in dims)
        strides = tuple(product(shape[n + 1 :]) for n in range(len(shape)))
        self.buffers[name] = Buffer(name, shape, dtype, strides, "cuda:0")

    def stored(self, name: str, dims: str, dtype=None) -> Value:
        """The element as it is in memory."""
        dtype = dtype or self.dtype
        if name not in self.buffers:
            self.buffer(name, dims, dtype)
        return self.b.load(name, self.index(dims), dtype)

    def load(self, name: str, dims: str, dtype=None) -> Value:
        return self.b.widen(self.stored(name, dims, dtype))

    def const(self, value: float) -> Value:
        return self.b.const(float(value), dtypes.f32)

    def contraction(self, left: Value, right: Value, over: str) -> Value:
        return self.b.reduce("sum", (self.b.op("mul", left, right),), (over,))

    def store(self, name: str, dims: str, value: Value, dtype=None) -> None:
        dtype = dtype or self.dtype
        self.buffer(name, dims, dtype)
        self.stores.append(Store(name, self.index(dims), self.b.cast(value, dtype)))

    def comp(self, name: str) -> Comp:
        used = {a for i in self.b.body for a in _axes(i)}
        used |= {a for s in self.stores for e in s.index for a in e.axes}
        axes = tuple(Axis(n, e) for n, e in self.extents.items() if n in used)
        return Comp(name, axes, self.b.body, tuple(self.stores))

    def less(self, index: Affine, than: Size) -> Value:
        limit = self.b.index(constant(than))
        return self.b.op("lt", self.b.index(index), limit)


def _axes(instr) -> set[str]:
    if isinstance(instr, Reduce):
        return set(instr.axes)
    entries = getattr(instr, "index", None) or (getattr(instr, "map", None),)
    return {a for e in entries if isinstance(e, Affine) for a in e.axes}


# score functions: a score from the product, the gradient of the product from that of the score


@dataclass(frozen=True)
class Score:
    """`forward(body, s)`; `backward(body, s, gradient)`; `dropped(body)`: what a weight is
    multiplied by. `low`, `high`: the keys that count for a row, `rows`: the rows for a key."""

    name: str
    forward: Callable[[Body, Value], Value]
    backward: Callable[[Body, Value, Value], Value] | None = None
    dropped: Callable[[Body], Value] | None = None
    low: Callable[[Sizes], Affine] | None = None
    high: Callable[[Sizes], Affine] | None = None
    fill: Callable[[Sizes], dict] = field(default=lambda sizes: {})


def _scale(body: Body) -> float:
    return 1 / math.sqrt(body.sizes.depth)


def _times(body: Body, s: Value, factor: float | None = None) -> Value:
    return body.b.op("mul", s, body.const(_scale(body) if factor is None else factor))


def _where(body: Body, test: Value, s: Value) -> Value:
    return body.b.op("where", test, s, body.const(-math.inf))


def _later(body: Body, s: Value) -> Value:
    zero = body.b.const(0, dtypes.i64)
    test = body.b.op("le", body.b.index(body.at["l"] + body.at["i"] * -1), zero)
    return _where(body, test, s)


def _scaled_back(body: Body, s: Value, gradient: Value) -> Value:
    return _times(body, gradient)


def _causal(body: Body, s: Value) -> Value:
    return _later(body, _times(body, s))


WIDTH = 37


def _window(body: Body, s: Value) -> Value:
    b = body.b
    far = b.op("lt", b.index(body.at["i"] + body.at["l"] * -1), b.const(WIDTH, dtypes.i64))
    near = b.op("le", b.index(body.at["l"]), b.index(body.at["i"]))
    return _where(body, b.op("bit_and", near, far), _times(body, s))


def _alibi(body: Body, s: Value) -> Value:
    b = body.b
    distance = b.cast(b.index(body.at["l"] + body.at["i"] * -1), dtypes.f32)
    bias = b.op("mul", distance, body.load("slope", "H", dtypes.f32))
    return _later(body, b.op("add", _times(body, s), bias))


CAP = 3.0


def _softcap(body: Body, s: Value) -> Value:
    t = body.b.op("tanh", _times(body, s, _scale(body) / CAP))
    return _later(body, body.b.op("mul", t, body.const(CAP)))


def _softcap_back(body: Body, s: Value, gradient: Value) -> Value:
    b = body.b
    t = b.op("tanh", _times(body, s, _scale(body) / CAP))
    slope = b.op("sub", body.const(1), b.op("mul", t, t))
    return _times(body, b.op("mul", gradient, slope))


def _bias(body: Body, s: Value) -> Value:
    return body.b.op("add", _times(body, s), body.load("bias", "Hil"))


def _documents(body: Body, s: Value) -> Value:
    b = body.b
    rows, keys = body.stored("ids_i", "bi", dtypes.i64), body.stored("ids_l", "bl", dtypes.i64)
    return _later(body, _where(body, b.op("eq", rows, keys), _times(body, s)))


def _ids(z: Sizes) -> dict[str, torch.Tensor]:
    def ids(n: int) -> torch.Tensor:
        return (torch.arange(n) // 29).repeat(z.batch, 1)

    return {"ids_i": ids(z.queries), "ids_l": ids(z.keys)}


def _padding(body: Body, s: Value) -> Value:
    return _where(body, body.stored("seen", "bl", dtypes.b1), _times(body, s))


def _seen(z: Sizes) -> dict[str, torch.Tensor]:
    seen = torch.ones(z.batch, z.keys, dtype=torch.bool)
    seen[0, z.keys // 3 :] = False
    seen[-1] = z.batch == 1  # the last sees nothing
    return {"seen": seen}


def _dropped(body: Body) -> Value:
    b, e = body.b, body.extents
    head = body.at["b"] * (e["h"] * e["g"]) + body.at["h"] * e["g"] + body.at["g"]
    place = (head * e["i"] + body.at["i"]) * e["l"] + body.at["l"]
    seed = b.const(1234, dtypes.i64)
    from torchweld.ir.nodes import Op

    uniform = b.emit(Op("philox", (seed, b.index(place)), dtypes.f32))
    kept = b.op("ge", uniform, body.const(0.25))
    return b.op("where", kept, body.const(1 / 0.75), body.const(0.0))


_UP = {"high": lambda z: axis("i") + 1}
PLAIN = Score("plain", _times, _scaled_back)
CAUSAL = Score("causal", _causal, _scaled_back, **_UP)
WINDOW = Score("window", _window, _scaled_back, low=lambda z: axis("i") + (1 - WIDTH), **_UP)
ALIBI = Score("alibi", _alibi, _scaled_back, **_UP)
SOFTCAP = Score("softcap", _softcap, _softcap_back, **_UP)
BIAS = Score("bias", _bias, _scaled_back)
DOCUMENTS = Score("documents", _documents, _scaled_back, fill=_ids, **_UP)
PADDING = Score("padding", _padding, _scaled_back, fill=_seen)
DROPOUT = Score("dropout", _causal, _scaled_back, _dropped, **_UP)
SCORES = (PLAIN, CAUSAL, WINDOW, ALIBI, SOFTCAP, BIAS, DOCUMENTS, PADDING, DROPOUT)


def forward(
    z: Sizes, score: Score, dtype: str = "bf16", saved: bool = False, guarded: bool = True, **more
) -> NestCase:
    """o = softmax(score) v; with `saved`, also the logarithm of the sum of exponentials.
    `guarded`: a row that sees nothing is zero, else NaN."""
    body = Body(z, dtype)
    b = body.b
    q, k, v = body.stored("q", "bHid"), body.stored("k", "bhld"), body.stored("v", "bhle")
    s = body.contraction(b.widen(q), b.widen(k), "d")
    x = score.forward(body, s)
    top = b.reduce("max", (x,), ("l",))
    base = top
    if guarded:
        base = b.op("where", b.op("eq", top, body.const(-math.inf)), body.const(0), top)
    w = b.op("exp", b.op("sub", x, base))
    total = b.reduce("sum", (w,), ("l",))
    kept = b.op("mul", w, score.dropped(body)) if score.dropped else w
    o = body.contraction(kept, b.widen(v), "l")
    mean = b.op("div", o, total)
    if guarded:
        mean = b.op("where", b.op("eq", total, body.const(0)), body.const(0), mean)
    body.store("o", "bHie", mean)
    if saved:
        body.store("lse", "bHi", b.op("add", base, b.op("log", total)), dtypes.f32)
    walk = Walk((top, total, o), ((total, top), (o, top)))
    return _case(f"forward-{score.name}", body, score, "gi", "l", (Inner(s, q, k, ("d",)),),
                 (top, total), (Outer(o, kept, v, ("e",)),), (walk,), **more)  # fmt: skip


def _gradients(body: Body, score: Score):
    """q, k, v, dO as stored; both products; the weights and the gradient of the scores' product."""
    b = body.b
    q, k, v = body.stored("q", "bHid"), body.stored("k", "bhld"), body.stored("v", "bhle")
    do = body.stored("do", "bHie")
    s = body.contraction(b.widen(q), b.widen(k), "d")
    dp = body.contraction(b.widen(do), b.widen(v), "e")
    x = score.forward(body, s)
    w = b.op("exp", b.op("sub", x, body.load("lse", "bHi", dtypes.f32)))
    mask = score.dropped(body) if score.dropped else None
    kept = w if mask is None else b.op("mul", w, mask)
    dp_kept = dp if mask is None else b.op("mul", dp, mask)
    ds = b.op("mul", w, b.op("sub", dp_kept, body.load("delta", "bHi", dtypes.f32)))
    return q, k, v, do, s, dp, kept, score.backward(body, s, ds)


def queries_gradient(z: Sizes, score: Score, dtype: str = "bf16", **more) -> NestCase:
    """dQ from q, k, v, dO, lse and delta."""
    body = Body(z, dtype)
    q, k, v, do, s, dp, _, ds = _gradients(body, score)
    body.extents["c"], body.at["c"] = z.depth, axis("c")
    again = body.stored("k", "bhlc")
    dq = body.contraction(ds, body.b.widen(again), "l")
    body.store("dq", "bHic", dq)
    inners = Inner(s, q, k, ("d",)), Inner(dp, do, v, ("e",))
    return _case(f"dq-{score.name}", body, score, "gi", "l", inners, (),
                 (Outer(dq, ds, again, ("c",)),), (Walk((dq,), ()),), **more)  # fmt: skip


def keys_gradient(z: Sizes, score: Score, dtype: str = "bf16", **more) -> NestCase:
    """dK and dV."""
    body = Body(z, dtype)
    q, k, v, do, s, dp, kept, ds = _gradients(body, score)
    over = tuple(n for n in "gi" if body.extents[n] != 1)
    for name, extent in (("c", z.depth), ("f", z.columns)):
        body.extents[name], body.at[name] = extent, axis(name)
    q2, do2 = body.stored("q", "bHic"), body.stored("do", "bHif")
    b = body.b
    dk = b.reduce("sum", (b.op("mul", ds, b.widen(q2)),), over)
    dv = b.reduce("sum", (b.op("mul", kept, b.widen(do2)),), over)
    body.store("dk", "bhlc", dk)
    body.store("dv", "bhlf", dv)
    inners = Inner(s, k, q, ("d",)), Inner(dp, v, do, ("e",))
    outers = Outer(dk, ds, q2, ("c",)), Outer(dv, kept, do2, ("f",))
    return _case(f"dkv-{score.name}", body, score, "l", "gi", inners, (), outers,
                 (Walk((dk, dv), ()),), **more)  # fmt: skip


def _case(name, body: Body, score: Score, rows, keys, inners, statistics, outers, walks, **more):
    z, comp = body.sizes, body.comp(name.replace("-", "_"))
    low, high = (f(z) if f else None for f in (score.low, score.high))
    if rows == "l":  # l < i + 1 bounds i from below
        low, high = (
            high and axis("l") + (1 - high.const), low and axis("l") + (1 - low.const)
        )

    def present(names: str) -> tuple[str, ...]:
        return tuple(a.name for a in comp.axes if a.name in names)

    batch = present("bh" if rows == "l" else "bh")
    nest = Nest(batch, present(rows), present(keys), inners, statistics, outers, walks,
                Bound(low, high))  # fmt: skip
    fill = score.fill(z) | more.pop("fill", {})
    label = f"{name}-{'x'.join(map(str, comp.extents.values()))}-{body.dtype.name}"
    return NestCase(label, comp, body.buffers, fill, more.pop("sizes", {}), None, nest)


def generated(case: NestCase):
    from torchweld.templates.attention.gpu.generate import generate

    return generate(case.comp, case.buffers, case.nest, case.schedule, False)


def tiled(case: NestCase, rows: int = 32, keys: int = 16, splits: int = 1, **more) -> NestCase:
    from dataclasses import replace

    from torchweld.templates.attention.gpu.schedule import NestSchedule

    n = case.nest
    one = (n.rows[-1:], n.keys[-1:]) if "merged" not in more else (n.rows, n.keys)
    more.pop("merged", None)
    s = NestSchedule(*one, rows, keys, 4, 2, splits, **more)
    return replace(case, schedule=s, name=f"{case.name}-{rows}x{keys}x{splits}")


def small() -> list[NestCase]:
    z = Sizes(1, 2, 1, 70, 70, 16, 16)
    g = Sizes(2, 1, 2, 40, 40, 24, 16)
    found = []
    for score in SCORES:
        for dtype in ("f16", "f32"):
            found.append(tiled(forward(z, score, dtype, saved=True)))
        found.append(tiled(queries_gradient(z, score, "f16")))
        found.append(tiled(keys_gradient(g, score, "f16"), 32, 16))
    found.append(tiled(forward(g, CAUSAL, "f16"), 16, 16, group=2))
    found.append(tiled(forward(g, CAUSAL, "f16"), 32, 16, merged=True))
    found.append(tiled(forward(g, WINDOW, "f16"), 32, 16, 2, merged=True))
    found.append(tiled(forward(g, PADDING, "f16", guarded=False)))
    found.append(tiled(forward(z, CAUSAL, "f16"), 32, 16, 3))
    found.append(tiled(forward(z, ALIBI, "f32"), 32, 16, 3))
    return found
