"""Score nests that the tests share: attention with many score functions, forward and backward.

Queries are [b, h * g, i, d], keys and values [b, h, l, d]. `lse` is what a forward pass saves, and
`delta` the sum of its result times its gradient, over a row.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import torch

from torchweld.codegen.source import KernelBundle
from torchweld.core import dtypes
from torchweld.ir.access import unmerged
from torchweld.ir.affine import Affine, axis, constant
from torchweld.ir.build import BodyBuilder
from torchweld.ir.nodes import Axis, Buffer, Comp, Op, Reduce, Store, Value
from torchweld.ir.normal_form import normalised
from torchweld.ir.simplify import simplify
from torchweld.ir.size import Size, evaluate, product, symbol
from torchweld.targets.find import named_target
from torchweld.targets.target import Target
from torchweld.templates import registry
from torchweld.templates.attention.gpu import schedule as triton_schedule
from torchweld.templates.attention.gpu import sums
from torchweld.templates.attention.gpu.generate import generate
from torchweld.templates.attention.gpu.schedule import NestSchedule
from torchweld.templates.attention.hopper import generate as hopper
from torchweld.templates.attention.hopper.schedule import HopperSchedule, windows_of
from torchweld.templates.attention.nest import Nest, nest_of
from torchweld.templates.attention.sums import sums_of
from triton_cases import Case

H100 = named_target("H100")


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
    multiplied by. `sinks`: one more score of each head, without a value."""

    name: str
    forward: Callable[[Body, Value], Value]
    backward: Callable[[Body, Value, Value], Value] | None = None
    dropped: Callable[[Body], Value] | None = None
    fill: Callable[[Sizes], dict] = field(default=lambda sizes: {})
    sinks: bool = False


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


def _added(body: Body, s: Value) -> Value:
    """A causal mask of 16 bits that is added, as models write it."""
    b = body.b
    later = b.op("lt", b.index(body.at["i"]), b.index(body.at["l"]))
    mask = b.op("where", later, b.const(-math.inf, dtypes.bf16), b.const(0.0, dtypes.bf16))
    return b.op("add", _times(body, s), b.cast(mask, dtypes.f32))


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
    uniform = b.emit(Op("philox", (seed, b.index(place)), dtypes.f32))
    kept = b.op("ge", uniform, body.const(0.25))
    return b.op("where", kept, body.const(1 / 0.75), body.const(0.0))


PLAIN = Score("plain", _times, _scaled_back)
CAUSAL = Score("causal", _causal, _scaled_back)
ADDED = Score("added", _added)
WINDOW = Score("window", _window, _scaled_back)
ALIBI = Score("alibi", _alibi, _scaled_back)
SOFTCAP = Score("softcap", _softcap, _softcap_back)
BIAS = Score("bias", _bias, _scaled_back)
DOCUMENTS = Score("documents", _documents, _scaled_back, fill=_ids)
PADDING = Score("padding", _padding, _scaled_back, fill=_seen)
SINKS = Score("sinks", _causal, sinks=True)
PADDED_SINKS = Score("padded-sinks", _padding, fill=_seen, sinks=True)
DROPOUT = Score("dropout", _causal, _scaled_back, _dropped)
SCORES = (PLAIN, CAUSAL, WINDOW, ALIBI, SOFTCAP, BIAS, DOCUMENTS, PADDING, DROPOUT)


def forward(
    z: Sizes, score: Score, dtype: str = "bf16", saved: bool = False, guarded: bool = True,
    results=None, **more
) -> NestCase:  # fmt: skip
    """o = softmax(score) v; with `saved`, also the logarithm of the sum of exponentials.
    `guarded`: a row that sees nothing is zero, else NaN. `results`: the type of o, if another."""
    body = Body(z, dtype)
    b = body.b
    s = body.contraction(body.load("q", "bHid"), body.load("k", "bhld"), "d")
    x = score.forward(body, s)
    top = b.reduce("max", (x,), ("l",))
    base = top
    if score.sinks:
        sink = body.load("sink", "H", dtypes.f32)
        base = b.op("maximum", top, sink)
    elif guarded:
        base = b.op("where", b.op("eq", top, body.const(-math.inf)), body.const(0), top)
    w = b.op("exp", b.op("sub", x, base))
    total = b.reduce("sum", (w,), ("l",))
    if score.sinks:
        total = b.op("add", total, b.op("exp", b.op("sub", sink, base)))
    kept = b.op("mul", w, score.dropped(body)) if score.dropped else w
    o = body.contraction(kept, body.load("v", "bhle"), "l")
    mean = b.op("div", o, total)
    if guarded and not score.sinks:
        mean = b.op("where", b.op("eq", total, body.const(0)), body.const(0), mean)
    body.store("o", "bHie", mean, results)
    if saved:
        body.store("lse", "bHi", b.op("add", base, b.op("log", total)), dtypes.f32)
    return _case(f"forward-{score.name}", body, score, "l", **more)


def _gradients(body: Body, score: Score) -> tuple[Value, Value]:
    """The weights, and the gradient of the scores' product."""
    b = body.b
    s = body.contraction(body.load("q", "bHid"), body.load("k", "bhld"), "d")
    dp = body.contraction(body.load("do", "bHie"), body.load("v", "bhle"), "e")
    x = score.forward(body, s)
    w = kept = b.op("exp", b.op("sub", x, body.load("lse", "bHi", dtypes.f32)))
    if score.dropped:
        mask = score.dropped(body)
        kept, dp = b.op("mul", w, mask), b.op("mul", dp, mask)
    ds = b.op("mul", w, b.op("sub", dp, body.load("delta", "bHi", dtypes.f32)))
    return kept, score.backward(body, s, ds)


def queries_gradient(z: Sizes, score: Score, dtype: str = "bf16", **more) -> NestCase:
    """dQ from q, k, v, dO, lse and delta."""
    body = Body(z, dtype)
    _, ds = _gradients(body, score)
    body.extents["c"], body.at["c"] = z.depth, axis("c")
    body.store("dq", "bHic", body.contraction(ds, body.load("k", "bhlc"), "l"))
    return _case(f"dq-{score.name}", body, score, "l", **more)


def keys_gradient(z: Sizes, score: Score, dtype: str = "bf16", **more) -> NestCase:
    """dK and dV."""
    body = Body(z, dtype)
    kept, ds = _gradients(body, score)
    over = tuple(n for n in "gi" if body.extents[n] != 1)
    for name, extent in (("c", z.depth), ("f", z.columns)):
        body.extents[name], body.at[name] = extent, axis(name)
    b = body.b
    dk = b.reduce("sum", (b.op("mul", ds, body.load("q", "bHic")),), over)
    dv = b.reduce("sum", (b.op("mul", kept, body.load("do", "bHif")),), over)
    body.store("dk", "bhlc", dk)
    body.store("dv", "bhlf", dv)
    return _case(f"dkv-{score.name}", body, score, over, **more)


def bias_gradient(z: Sizes, score: Score, dtype: str = "bf16", **more) -> NestCase:
    """The gradient of the scores, summed over the batch."""
    body = Body(z, dtype)
    _, ds = _gradients(body, replace(score, backward=lambda body, s, gradient: gradient))
    body.store("db", "Hil", body.b.reduce("sum", (ds,), ("b",)))
    return _case(f"db-{score.name}", body, score, "b", **more)


def _case(name: str, body: Body, score: Score, keys, **more) -> NestCase:
    z, comp = body.sizes, normalised(simplify(body.comp(name.replace("-", "_"))), keys)
    sizes = more.pop("sizes", {})
    fill = _statistics(body, sizes) | score.fill(z) | more.pop("fill", {})
    label = f"{name}-{'x'.join(map(str, comp.extents.values()))}-{body.dtype.name}"
    nest = nest_of(comp) or sums_of(comp)
    return NestCase(label, comp, body.buffers, fill, sizes, None, nest)


_MEAN_AND_SPREAD = {"lse": (4.5, 0.2), "delta": (0.0, 0.1), "slope": (0.25, 0.01)}


def _statistics(body: Body, sizes: Mapping[str, int]) -> dict[str, torch.Tensor]:
    """Of a row of some hundred scores, so that weights are less than one; falling slopes."""
    g = torch.Generator().manual_seed(5)
    made = {}
    for name, (mean, spread) in _MEAN_AND_SPREAD.items():
        if name in body.buffers:
            shape = [evaluate(e, sizes) for e in body.buffers[name].shape]
            made[name] = mean + spread * torch.randn(shape, generator=g)
    return made


def generated(case: NestCase, target: Target = H100) -> KernelBundle:
    """Of the case's own schedule if it has one; nothing begins early then."""
    if isinstance(case.schedule, HopperSchedule):
        return _on_hopper(case)
    if case.schedule is not None and case.nest.turns:
        return sums.code(case.comp, case.buffers, case.nest, case.schedule, False)
    if case.schedule is not None:
        return generate(case.comp, case.buffers, case.nest, case.schedule, False)
    return registry.bundle_of(case.comp, case.buffers, target, case.sizes)


def _on_hopper(case: NestCase) -> KernelBundle:
    windows = windows_of(unmerged(case.comp, case.buffers), case.nest, case.schedule)
    work = triton_schedule.Work(case.comp, case.buffers, case.nest, H100, case.sizes)
    other = next(triton_schedule.candidates(work))
    return hopper.generate(case.comp, case.buffers, case.nest, case.schedule, windows, other)


def on_hopper(
    case: NestCase, rows: int = 64, keys: int = 128, stages: int = 2, groups: int = 2, group=0,
    programs: int = 2,
) -> NestCase:  # fmt: skip
    """As a Gluon kernel, of so many rows and keys of a block; `group`: of the batch."""
    n = case.nest
    s = HopperSchedule(n.rows[-1:], n.keys, rows, keys, 4, stages, group=group, groups=groups,
                       overlapped=len(n.outers) == 1, programs=programs)  # fmt: skip
    return replace(case, schedule=s, name=f"{case.name}-{groups}x{rows}x{keys}x{stages}")


def tiled(
    case: NestCase, rows: int = 32, keys: int = 16, splits: int = 1, merged: bool = False, **more
) -> NestCase:
    """With small tiles. `merged`: of all rows' axes together."""
    n = case.nest
    axes = (n.rows, n.keys) if merged else (n.rows[-1:], n.keys[-1:])
    s = NestSchedule(*axes, rows, keys, 4, 2, splits=splits, **more)
    return replace(case, schedule=s, name=f"{case.name}-{rows}x{keys}x{splits}")


def small() -> list[NestCase]:
    """Of all forms, for an interpreter."""
    z, g = Sizes(1, 2, 1, 70, 70, 16, 16), Sizes(2, 1, 2, 40, 40, 24, 16)
    found = []
    for score in SCORES:
        found += [tiled(forward(z, score, dtype, saved=True)) for dtype in ("f16", "f32")]
        found.append(tiled(queries_gradient(z, score, "f16")))
        found.append(tiled(keys_gradient(g, score, "f16"), 32, 16))
    return [
        *found,
        *(tiled(forward(z, SINKS, dtype, saved=True)) for dtype in ("f16", "f32")),
        tiled(forward(g, PADDED_SINKS, "f16"), 32, 16, 3),
        *(tiled(bias_gradient(g, BIAS, dtype)) for dtype in ("f16", "f32")),
        tiled(bias_gradient(Sizes(3, 2, 1, 70, 50, 16, 16), CAUSAL, "f16")),
        tiled(bias_gradient(Sizes(2, 1, 2, 40, 40, 16, 16), WINDOW, "f16"), 16, 16),
        tiled(forward(g, CAUSAL, "f16"), 16, 16, group=2),
        tiled(forward(g, CAUSAL, "f16"), 32, 16, merged=True),
        tiled(forward(g, WINDOW, "f16"), 32, 16, 2, merged=True),
        tiled(keys_gradient(g, WINDOW, "f16"), 32, 16, merged=True),
        tiled(forward(g, PADDING, "f16", guarded=False)),
        tiled(forward(z, CAUSAL, "f16"), 32, 16, 3),
        tiled(forward(z, ALIBI, "f32"), 32, 16, 3),
        tiled(forward(Sizes(2, 2, 1, 1, 70, 16, 16), PADDING, "f16", True), 16, 32),
        tiled(forward(Sizes(1, 2, 2, "s0", "s1", 16, 16), CAUSAL, "f16", sizes=LENGTHS)),
        tiled(keys_gradient(Sizes(1, 2, 2, "s0", "s1", 16, 16), CAUSAL, "f16", sizes=LENGTHS)),
        tiled(sigmoid(g, "f16")),
        tiled(differential(z, "f16")),
        tiled(two_walks(z, "f16")),
    ]


def small_on_hopper() -> list[NestCase]:
    """For an interpreter."""
    z, g = Sizes(1, 2, 1, 70, 70, 16, 16), Sizes(2, 1, 2, 40, 48, 24, 16)
    scores = [s for s in SCORES if s is not DROPOUT]
    return [
        *(on_hopper(forward(z, s, saved=True), 16, 16) for s in scores),
        *(on_hopper(forward(g, s, saved=True), 16, 16) for s in (SINKS, PADDED_SINKS)),
        on_hopper(forward(g, CAUSAL), 16, 16, 3, group=2),
        on_hopper(forward(g, WINDOW), 16, 32, 4, 3),
        on_hopper(forward(g, PLAIN), 16, 16),  # whole blocks
        on_hopper(forward(g, PADDING, guarded=False), 32, 16),
        on_hopper(forward(Sizes(1, 1, 1, 150, 9, 16, 32), ALIBI), 16, 16, 2, 3),  # one block
        on_hopper(forward(Sizes(1, 1, 1, 150, 9, 16, 16), WINDOW), 16, 16),  # tiles without keys
        on_hopper(keys_gradient(Sizes(1, 1, 1, 9, 150, 16, 16), CAUSAL), 16, 16),
        *(on_hopper(keys_gradient(z, s), 16, 32, 3) for s in scores),  # numbers by TMA
        on_hopper(sigmoid(g, "bf16"), 16, 16),
        *(on_hopper(queries_gradient(z, s), 16, 16, 3) for s in scores),
        *(on_hopper(keys_gradient(z, s), 16, 16, 3) for s in scores),
        on_hopper(queries_gradient(g, CAUSAL), 16, 32, 2, 3),
        on_hopper(keys_gradient(Sizes(1, 2, 1, 90, 40, 24, 16), WINDOW), 16, 16, 2, 3),
    ]


def varied_on_hopper() -> list[NestCase]:
    """For a device: each score function, odd sizes, shared heads, rows that see nothing, NaN."""
    z, g = Sizes(1, 2, 1, 150, 210, 64, 64), Sizes(2, 1, 3, 300, 257, 128, 128)
    h = replace(g, heads=1)
    scores = [s for s in SCORES if s is not DROPOUT]
    wide = [
        on_hopper(forward(Sizes(1, 2, 1, 140, 150, depth, columns), WINDOW, "f16"), keys=keys)
        for depth, columns, keys in ((32, 32, 128), (80, 80, 128), (192, 128, 64), (256, 256, 64))
    ]
    return [
        *(on_hopper(forward(z, s, saved=True), stages=3) for s in scores),
        *(on_hopper(forward(g, s, "f16"), group=2) for s in (PLAIN, CAUSAL, SOFTCAP, BIAS)),
        *(on_hopper(forward(g, s, saved=True)) for s in (SINKS, PADDED_SINKS)),
        *wide,
        on_hopper(forward(z, PLAIN, guarded=False, fill=_hard(z) | _hard_values(z))),
        *(on_hopper(forward(z, s, guarded=False, fill=_hard(z))) for s in (CAUSAL, ALIBI)),
        on_hopper(forward(z, PADDING, guarded=False)),
        on_hopper(sigmoid(g, "bf16")),
        *(on_hopper(queries_gradient(z, s), keys=64, stages=3) for s in scores),
        *(on_hopper(keys_gradient(z, s), keys=64, stages=3) for s in scores),
        *(on_hopper(queries_gradient(g, s, "f16"), keys=64) for s in (CAUSAL, BIAS)),
        *(on_hopper(keys_gradient(h, s, "f16"), keys=64) for s in (CAUSAL, WINDOW)),
        on_hopper(queries_gradient(z, CAUSAL), keys=64, stages=3, groups=3),
        *(on_hopper(keys_gradient(Sizes(2, 4, 1, 40, 150, 16, 16), PLAIN), keys=keys, stages=3)
          for keys in (16, 32)),
        on_hopper(keys_gradient(Sizes(1, 2, 1, 140, 150, 80, 48), ALIBI), keys=64),
    ]


LENGTHS = {"s0": 37, "s1": 51}


def varied(dtype: str) -> list[NestCase]:
    """With default tiles: each score function, odd sizes of heads, shared heads, few rows, lengths
    that vary, rows that see nothing, NaN and infinities."""
    z, g = Sizes(1, 2, 1, 150, 210, 64, 64), Sizes(2, 1, 3, 150, 130, 64, 64)
    found = []
    for score in SCORES:
        found.append(forward(z, score, dtype, saved=True))
        found += [queries_gradient(z, score, dtype), keys_gradient(g, score, dtype)]
    for depth, columns in ((32, 32), (80, 80), (128, 128), (192, 128), (256, 256)):
        wide = Sizes(1, 2, 1, 140, 150, depth, columns)
        found += [form(wide, WINDOW, dtype) for form in (forward, queries_gradient, keys_gradient)]
    lengths = {"s0": 97, "s1": 300}
    varying = Sizes(1, 2, 2, "s0", "s1", 64, 64)
    return [
        *found,
        forward(z, PLAIN, dtype, guarded=False, fill=_hard(z) | _hard_values(z)),
        *(forward(z, s, dtype, guarded=False, fill=_hard(z)) for s in (CAUSAL, ALIBI)),
        forward(z, PADDING, dtype, guarded=False),
        forward(g, WINDOW, dtype),
        forward(varying, CAUSAL, dtype, sizes=lengths),
        forward(varying, PLAIN, dtype, sizes=lengths | {"s1": 7}),
        queries_gradient(varying, WINDOW, dtype, sizes=lengths),
        keys_gradient(varying, CAUSAL, dtype, sizes=lengths),
        forward(Sizes(1, 1, 4, 3, 2100, 64, 64), PLAIN, dtype, saved=True),  # shares of the keys
        forward(Sizes(1, 1, 1, 1, 1100, 64, 64), CAUSAL, dtype),
        *(forward(g, s, dtype, saved=True) for s in (SINKS, PADDED_SINKS)),
        *(bias_gradient(g, s, dtype) for s in (BIAS, CAUSAL, WINDOW)),
        bias_gradient(Sizes(3, 1, 1, 150, 130, 128, 128), BIAS, dtype),
        sigmoid(g, dtype),
        differential(z, dtype),
        two_walks(z, dtype),
        replace(tiled(forward(g, CAUSAL, dtype), 64, 32, group=3), name=f"groups-{dtype}"),
    ]


def few(dtype: str) -> list[NestCase]:
    """Of `varied`, one of each kind."""
    z, g = Sizes(1, 2, 1, 150, 210, 64, 64), Sizes(2, 1, 3, 150, 130, 128, 128)
    return [
        *(forward(z, score, dtype, saved=True) for score in (CAUSAL, SOFTCAP, DROPOUT)),
        queries_gradient(z, WINDOW, dtype),
        queries_gradient(g, BIAS, dtype),
        keys_gradient(g, CAUSAL, dtype),
        keys_gradient(g, DROPOUT, dtype),
        forward(Sizes(1, 2, 1, 140, 150, 256, 256), ALIBI, dtype),
        forward(g, SINKS, dtype, saved=True),
        bias_gradient(Sizes(2, 1, 3, 150, 130, 64, 64), BIAS, dtype),
        forward(z, PLAIN, dtype, guarded=False, fill=_hard(z) | _hard_values(z)),
        forward(Sizes(1, 1, 4, 3, 2100, 64, 64), PLAIN, dtype, saved=True),
    ]


def _hard(z: Sizes) -> dict[str, torch.Tensor]:
    """NaN in a query and in a key, infinities in others."""
    g = torch.Generator().manual_seed(3)
    heads = z.batch, z.shared
    q = torch.randn(*heads, z.queries, z.depth, generator=g)
    k = torch.randn(*heads, z.keys, z.depth, generator=g)
    q[0, 0, 5, 0] = k[0, 1, 100, 0] = math.nan
    q[0, 0, 9, 3] = k[0, 1, 110, 3] = math.inf
    return {"q": q, "k": k}


def _hard_values(z: Sizes) -> dict[str, torch.Tensor]:
    """An infinite value: of a key that a mask excludes it would not be read."""
    g = torch.Generator().manual_seed(4)
    v = torch.randn(z.batch, z.shared, z.keys, z.columns, generator=g)
    v[0, 0, 120, 7] = -math.inf
    return {"v": v}


def sigmoid(z: Sizes, dtype: str, **more) -> NestCase:
    """Causal attention without statistics."""
    body = Body(z, dtype)
    b = body.b
    s = body.contraction(body.load("q", "bHid"), body.load("k", "bhld"), "d")
    later = b.op("gt", b.index(body.at["l"]), b.index(body.at["i"]))
    w = b.op("where", later, body.const(0.0), b.op("sigmoid", _times(body, s)))
    body.store("o", "bHie", body.contraction(w, body.load("v", "bhle"), "l"))
    return _case("sigmoid", body, PLAIN, "l", **more)


def differential(z: Sizes, dtype: str, **more) -> NestCase:
    """(softmax(q k) - 0.3 softmax(q2 k2)) v in one walk."""
    body = Body(z, dtype)
    b = body.b
    body.extents["c"], body.at["c"] = z.depth, axis("c")
    pairs = [("q", "k", "d"), ("q2", "k2", "c")]
    parts = [_softmax(body, *pair) for pair in pairs]
    w = b.op("sub", parts[0], b.op("mul", parts[1], body.const(0.3)))
    body.store("o", "bHie", body.contraction(w, body.load("v", "bhle"), "l"))
    return _case("differential", body, PLAIN, "l", **more)


def _softmax(body: Body, query: str, key: str, depth: str) -> Value:
    b = body.b
    q, k = body.load(query, "bHi" + depth), body.load(key, "bhl" + depth)
    x = _times(body, body.contraction(q, k, depth))
    w = b.op("exp", b.op("sub", x, b.reduce("max", (x,), ("l",))))
    return b.op("div", w, b.reduce("sum", (w,), ("l",)))


def two_walks(z: Sizes, dtype: str, **more) -> NestCase:
    """Weights that are not proportional to any function of the maximum."""
    body = Body(z, dtype)
    b = body.b
    s = _times(body, body.contraction(body.load("q", "bHid"), body.load("k", "bhld"), "d"))
    gap = b.op("sub", b.reduce("max", (s,), ("l",)), s)
    w = b.op("reciprocal", b.op("add", b.op("mul", gap, gap), body.const(1.0)))
    body.store("o", "bHie", body.contraction(w, body.load("v", "bhle"), "l"))
    return _case("two-walks", body, PLAIN, "l", **more)
