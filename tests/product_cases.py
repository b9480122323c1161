"""Comps that make products, for tests and benchmarks of the product templates: every kind of factor
and of epilogue, at any size."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch

from torchweld.core import dtypes
from torchweld.core.dtypes import DType
from torchweld.ir import affine
from torchweld.ir.access import Accesses, addressed
from torchweld.ir.build import BodyBuilder
from torchweld.ir.contraction import Contraction, contraction_of
from torchweld.ir.nodes import Axis, Buffer, Comp, Op, Ref, Store, Value
from torchweld.ir.size import Size, product, symbol
from torchweld.plan.products.concat import concatenated
from triton_cases import Case, title

HARD = torch.tensor([float("nan"), float("inf"), float("-inf"), 0.0, -0.0, 1.0, -2.5, 300.0])


class Body:
    """A Comp being written. Axes are named by one letter: `read("x", "mk")` is x[m, k] in
    float32."""

    def __init__(self, dtype: str, **extents: Size | str) -> None:
        self.builder = BodyBuilder()
        self.dtype = dtypes.BY_NAME[dtype]
        self.extents = {n: symbol(e) if isinstance(e, str) else e for n, e in extents.items()}
        self.buffers: dict[str, Buffer] = {}
        self.stores: list[Store] = []

    def read(self, name: str, axes: str, dtype: DType | None = None, gap: int = 0) -> Value:
        """`gap`: elements between rows."""
        dtype = dtype or self.dtype
        self.declare(name, axes, dtype, gap)
        return self.builder.widen(self.builder.load(name, self.index(axes), dtype))

    def op(self, name: str, *args: Value | float) -> Value:
        values = (a if isinstance(a, int) else self.builder.const(a, dtypes.f32) for a in args)
        return self.builder.op(name, *values)

    def sum(self, value: Value) -> Value:
        return self.builder.reduce("sum", (value,), tuple(a for a in self.extents if a in "kl"))

    def dot(self, left: Value, right: Value) -> Value:
        return self.sum(self.op("mul", left, right))

    def rounded(self, value: Value) -> Value:
        return self.builder.cast(self.builder.cast(value, self.dtype), dtypes.f32)

    def write(
        self, name: str, axes: str, value: Value, dtype: DType | None = None, guard=None
    ) -> None:
        dtype = dtype or self.dtype
        self.declare(name, axes, dtype, 0)
        value = self.builder.cast(value, dtype)
        self.stores.append(Store(name, self.index(axes), value, guard=guard))

    def case(self, name: str, fill: Mapping | None = None, sizes=None) -> Case:
        axes = tuple(Axis(n, e) for n, e in self.extents.items())
        comp = Comp(name, axes, self.builder.body, tuple(self.stores))
        return Case(name, comp, self.buffers, fill or {}, sizes or {})

    def index(self, axes: str) -> tuple:
        return tuple(affine.axis(a) for a in axes)

    def declare(self, name: str, axes: str, dtype: DType | None = None, gap: int = 0) -> None:
        shape = tuple(self.extents[a] for a in axes)
        outer = (product(shape[k + 1 : -1]) * (shape[-1] + gap) for k in range(len(shape) - 1))
        strides = (*outer, 1) if shape else ()
        weights = name.startswith("w")
        self.buffers[name] = Buffer(name, shape, dtype or self.dtype, strides, "cuda:0", weights)


def parts(case: Case) -> tuple[Accesses, Contraction]:
    """What product templates are given of it."""
    accesses = addressed(case.comp, case.buffers, case.sizes)
    return accesses, contraction_of(accesses)


def tiled_title(case: Case) -> str:
    """linear-129x333x104-bf16-64x128x32w4/2"""
    s, dtype = case.schedule, next(iter(case.buffers.values())).dtype
    pairs = "pp" if s and s.pingpong else ""
    tile = f"-{s.block_m}x{s.block_n}x{s.block_k}w{s.num_warps}/{s.splits}{pairs}" if s else ""
    return f"{title(case)}-{dtype}{tile}"


def gelu(body: Body, x: Value) -> Value:
    inner = body.op("erf", body.op("mul", x, 0.7071067811865476))
    return body.op("mul", body.op("mul", x, body.op("add", inner, 1.0)), 0.5)


def silu(body: Body, x: Value) -> Value:
    return body.op("mul", x, body.op("sigmoid", x))


def linear(m, n, k, dtype="bf16", left="mk", right="nk", gap=0, fill=None, sizes=None) -> Case:
    b = Body(dtype, m=m, n=n, k=k)
    b.write("y", "mn", b.dot(b.read("x", left, gap=gap), b.read("w", right, gap=gap)))
    return b.case("linear", fill, sizes)


def apart(case: Case, names: str = "xw") -> Case:
    """The rows of these matrices begin at multiples of eight elements, whatever their length."""
    rows = {n: replace(b, strides=(b.shape[1] + -b.shape[1] % 8, 1), slack=-b.shape[1] % 8)
            for n, b in case.buffers.items() if n in names}  # fmt: skip
    return replace(case, buffers=case.buffers | rows)


def biased(m, n, k, dtype="bf16") -> Case:
    b = Body(dtype, m=m, n=n, k=k)
    made = b.dot(b.read("x", "mk"), b.read("w", "nk"))
    b.write("y", "mn", b.op("add", made, b.read("b", "n")))
    return b.case("biased")


def bias_gelu(m, n, k, dtype="bf16", sizes=None, fill=None) -> Case:
    b = Body(dtype, m=m, n=n, k=k)
    made = b.dot(b.read("x", "mk"), b.read("w", "nk"))
    b.write("y", "mn", gelu(b, b.op("add", made, b.read("b", "n"))))
    return b.case("bias_gelu", fill, sizes)


def bias_residual(m, n, k, dtype="bf16", sizes=None) -> Case:
    b = Body(dtype, m=m, n=n, k=k)
    made = b.op("add", b.dot(b.read("x", "mk"), b.read("w", "nk")), b.read("b", "n"))
    b.write("y", "mn", b.op("add", made, b.read("r", "mn")))
    return b.case("bias_residual", None, sizes)


def residual(m, n, k, dtype="bf16", order="mn") -> Case:
    b = Body(dtype, m=m, n=n, k=k)
    made = b.dot(b.read("x", "mk"), b.read("w", "nk"))
    b.write("y", order, b.op("add", made, b.read("r", order)))
    return b.case("residual", None, None)


def gated(m, n, k, dtype="bf16", sizes=None) -> Case:
    b = Body(dtype, m=m, n=n, k=k)
    x = b.read("x", "mk")
    gate, up = (b.dot(x, b.read(w, "nk")) for w in ("wg", "wu"))
    b.write("y", "mn", b.op("mul", silu(b, gate), up))
    return b.case("gated", None, sizes)


def two_lefts(m, n, k, dtype="bf16") -> Case:
    """Sums of products that have nothing in common, of matrices that lie in different ways."""
    b = Body(dtype, m=m, n=n, k=k)
    made = b.dot(b.read("x", "mk"), b.read("w", "nk"))
    b.write("y", "mn", b.op("add", made, b.dot(b.read("z", "km"), b.read("v", "kn"))))
    return b.case("two_lefts")


def beside_computed(m, n, k, dtype="bf16") -> Case:
    """Two left factors, of which one is computed from the other."""
    b = Body(dtype, m=m, n=n, k=k)
    x = b.read("x", "mk")
    made = b.dot(b.rounded(silu(b, x)), b.read("v", "nk"))
    b.write("y", "mn", b.op("add", made, b.dot(x, b.read("w", "nk"))))
    return b.case("beside_computed")


def three(m, n, k, dtype="bf16") -> Case:
    """Products of one left factor, each with a result of its own."""
    b = Body(dtype, m=m, n=n, k=k)
    x = b.read("x", "mk")
    for part in "012":
        b.write(f"y{part}", "mn", b.dot(x, b.read(f"w{part}", "nk")))
    return b.case("three")


def normed(m, n, k, dtype="bf16", pair=False) -> Case:
    """RMSNorm before the product, applied after it; its weights are in `w`."""
    b = Body(dtype, m=m, n=n, k=k)
    x = b.read("x", "mk")
    mean = b.op("mul", b.sum(b.op("mul", x, x)), 1.0 / k)
    scale = b.op("rsqrt", b.op("add", mean, 1e-6))
    made = b.op("mul", b.dot(x, b.read("w", "nk")), scale)
    if pair:
        up = b.op("mul", b.dot(x, b.read("wu", "nk")), scale)
        made = b.op("mul", silu(b, made), up)
    b.write("y", "mn", made)
    return b.case("normed_pair" if pair else "normed")


def int8_weight(m, n, k, dtype="bf16", packed=dtypes.i8) -> Case:
    """A weight of 8 bits with a scale for each column."""
    b = Body(dtype, m=m, n=n, k=k)
    number = b.read("q", "nk", packed)
    weight = b.op("mul", b.builder.cast(number, dtypes.f32), b.read("s", "n"))
    b.write("y", "mn", b.dot(_librarys(b, "mk"), b.rounded(weight)))
    return b.case(f"{packed}_weight")


def integers(m, n, k, dtype="bf16", right="nk", fill=None) -> Case:
    """Of 8-bit integers, with a scale for each row and column, a bias and a gelu; the sums too."""
    b = Body(dtype, m=m, n=n, k=k)
    left, other = (b.builder.cast(b.read(*given, dtypes.i8), dtypes.i32)
                   for given in (("x", "mk"), ("w", right)))  # fmt: skip
    total = b.sum(b.builder.op("mul", left, other))
    b.write("total", "mn", total, dtypes.i32)
    scaled = b.op("mul", b.builder.cast(total, dtypes.f32), b.read("sx", "m", dtypes.f32))
    scaled = b.op("mul", scaled, b.read("sw", "n", dtypes.f32))
    b.write("y", "mn", gelu(b, b.op("add", scaled, b.read("b", "n"))))
    return b.case("integers", fill)


def nibbles(m, n, groups, run, dtype="bf16") -> Case:
    """A weight of two numbers to a byte, in groups of 2 * run along the depth, each with a scale
    and a zero point; a bias."""
    b = Body(dtype, m=m, n=n, g=groups, k=run, l=2)
    packed, to = b.read("q", "ngk", dtypes.u8), b.builder
    low = to.op("bit_and", packed, to.const(15, dtypes.u8))
    high = to.op("shr", packed, to.const(4, dtypes.u8))
    first = to.op("lt", to.index(affine.axis("l")), to.const(1, dtypes.i64))
    code = to.cast(to.op("where", first, low, high), dtypes.f32)
    weight = b.op("mul", b.op("sub", code, b.read("z", "ng")), b.read("s", "ng"))
    made = b.op("mul", _librarys(b, "mgkl"), b.rounded(weight))
    b.write("y", "mn", b.op("add", to.reduce("sum", (made,), tuple("gkl")), b.read("b", "n")))
    return b.case("nibbles")


def _librarys(b: Body, axes: str) -> Value:
    """The left factor x, marked as that of a library's product."""
    b.declare("x", axes)
    return b.builder.widen(b.builder.load("x", b.index(axes), b.dtype, exact=True))


def scaled_outputs(m, n, k, dtype="bf16") -> Case:
    """Row scales, a scalar, results in three dtypes."""
    b = Body(dtype, m=m, n=n, k=k)
    made = b.op("mul", b.dot(b.read("x", "mk"), b.read("w", "nk")), b.read("s", "m", dtypes.f32))
    made = b.op("add", made, b.read("a", "", dtypes.f32))
    b.write("y", "mn", made)
    b.write("z", "mn", made, dtypes.f32)
    b.write("positive", "mn", b.op("gt", made, 0.0), dtypes.b1)
    return b.case("scaled_outputs")


def heads(batch, length, count, width, k, dtype="bf16", transposed=False) -> Case:
    """[b, s, k] to heads [b, h, s, d]; `transposed`: keys, [b, h, d, s]."""
    b = Body(dtype, b=batch, s=length, h=count, d=width, k=k)
    made = b.op("add", b.dot(b.read("x", "bsk"), b.read("w", "hdk")), b.read("v", "hd"))
    b.write("y", "bhds" if transposed else "bhsd", made)
    return b.case("heads_transposed" if transposed else "heads")


def from_heads(batch, length, count, width, n, dtype="bf16") -> Case:
    """Heads [b, k, s, l], put together and multiplied: a depth of two axes."""
    b = Body(dtype, b=batch, s=length, n=n, k=count, l=width)
    b.write("y", "bsn", b.dot(b.read("x", "bksl"), b.read("w", "nkl")))
    return b.case("from_heads")


def batched(batch, m, n, k, dtype="bf16", right="bkn") -> Case:
    """Scores with a mask that all of a batch share."""
    b = Body(dtype, b=batch, m=m, n=n, k=k)
    made = b.op("mul", b.dot(b.read("x", "bmk"), b.read("w", right)), 0.125)
    b.write("y", "bmn", b.op("add", made, b.read("mask", "mn", dtypes.f32)))
    return b.case("batched")


def gate_before(m, n, k, dtype="bf16") -> Case:
    """The left factor is computed and rounded: silu(g) * u."""
    b = Body(dtype, m=m, n=n, k=k)
    left = b.rounded(b.op("mul", silu(b, b.read("g", "mk")), b.read("u", "mk")))
    b.write("y", "mn", b.op("add", b.dot(left, b.read("w", "nk")), b.read("r", "mn")))
    return b.case("gate_before")


def scaled_before(m, n, k, dtype="bf16") -> Case:
    """Both factors are computed and rounded, one from a column, one from a row."""
    b = Body(dtype, m=m, n=n, k=k)
    left = b.rounded(b.op("add", b.read("x", "mk"), b.read("s", "m", dtypes.f32)))
    right = b.rounded(b.op("mul", b.read("w", "nk"), b.read("t", "k", dtypes.f32)))
    b.write("y", "mn", b.dot(left, right))
    return b.case("scaled_before")


def shifted(m, n, k, dtype="bf16") -> Case:
    """The left factor is guarded: the row before, zeros in the first place."""
    b = Body(dtype, m=m, n=n, k=k)
    row = affine.axis("m")
    inside = b.op("gt", b.builder.index(row), b.builder.index(affine.constant(0)))
    b.declare("x", "mk")
    at = (row + -1, affine.axis("k"))
    left = b.builder.widen(b.builder.load("x", at, b.dtype, inside, 0.0))
    b.write("y", "mn", b.dot(left, b.read("w", "nk")))
    return b.case("shifted")


def gathered(m, n, k, dtype="bf16") -> Case:
    """The rows of the left factor are looked up: an embedding, then a product."""
    b = Body(dtype, m=m, n=n, k=k)
    b.declare("x", "nk")
    at = (Ref(b.read("at", "m", dtypes.i64)), affine.axis("k"))
    left = b.builder.widen(b.builder.load("x", at, b.dtype))
    b.write("y", "mn", b.dot(left, b.read("w", "nk")))
    return b.case("gathered", {"at": torch.arange(m) * 7 % n})


def side_by_side(m, columns, k, dtype="bf16", sizes=None, activated=()) -> Case:
    """Products of one left factor with several right ones, as one: queries, keys, values. Results
    and biases are apart; those of which the numbers are `activated` have a gelu."""
    b = Body(dtype, m=m, n=sum(columns), k=k)
    at, n = b.builder.index(affine.axis("n")), b.extents["n"]
    first, parts, made = 0, [], None
    for number, width in enumerate(columns):
        low, high = (b.builder.const(c, dtypes.i64) for c in (first, first + width))
        guard = b.op("bit_and", b.op("lt", at, high), b.op("ge", at, low))
        parts.append((number, guard, affine.axis("n") + -first, b.op("lt", at, high)))
        b.extents["n"] = width
        for name, axes in (("w", "nk"), ("b", "n"), ("y", "mn")):
            b.declare(f"{name}{number}", axes)
        first += width
    b.extents["n"] = n
    for number, guard, column, below in reversed(parts):
        w = b.builder.load(f"w{number}", (column, affine.axis("k")), b.dtype, guard, 0.0)
        made = w if made is None else b.builder.op("where", below, w, made)
    product = b.dot(b.read("x", "mk"), b.builder.widen(made))
    for number, guard, column, _ in parts:
        add = b.builder.widen(b.builder.load(f"b{number}", (column,), b.dtype, guard, 0.0))
        value = b.op("add", product, add)
        value = b.builder.cast(gelu(b, value) if number in activated else value, b.dtype)
        b.stores.append(Store(f"y{number}", (affine.axis("m"), column), value, guard=guard))
    return b.case("side_by_side", None, sizes)


def into_cache(m, queries, shared, d, k, dtype="bf16") -> Case:
    """Queries, and beside them values that go into a cache, each row where it is told."""
    b = Body(dtype, m=m, n=queries + shared, d=d, k=k)
    at, bound = b.builder.index(affine.axis("n")), b.builder.const(queries, dtypes.i64)
    low, high, every = b.op("lt", at, bound), b.op("ge", at, bound), b.extents["n"]
    for count, names in ((queries, {"wq": "ndk", "y": "mnd"}), (shared, {"wv": "ndk", "c": "nmd"})):
        b.extents["n"] = count
        for name, axes in names.items():
            b.declare(name, axes)
    b.extents["n"] = every
    b.declare("p", "m", dtypes.i64)
    order = torch.arange(b.extents["m"]).flip(0)
    m, n, d, k = (affine.axis(a) for a in "mndk")
    x, place = b.read("x", "mk"), b.builder.load("p", (m,), dtypes.i64)
    wq = b.builder.load("wq", (n, d, k), b.dtype, low, 0.0)
    wv = b.builder.load("wv", (n + -queries, d, k), b.dtype, high, 0.0)
    made = b.dot(x, b.builder.widen(b.builder.op("where", low, wq, wv)))
    value = b.builder.cast(made, b.dtype)
    b.stores = [Store("y", (m, n, d), value, guard=low),
                Store("c", (n + -queries, Ref(place), d), value, guard=high)]  # fmt: skip
    return b.case("into_cache", {"p": order})


def scattered(m, n, k, dtype="bf16") -> Case:
    """Each row where it is told, as long as that is inside."""
    b = Body(dtype, m=m, n=n, k=k)
    b.declare("p", "m", dtypes.i64)
    b.declare("y", "mn")
    place = b.builder.load("p", (affine.axis("m"),), dtypes.i64)
    inside = b.op("lt", place, b.builder.const(m, dtypes.i64))
    value = b.builder.cast(b.dot(b.read("x", "mk"), b.read("w", "nk")), b.dtype)
    b.stores = [Store("y", (Ref(place), affine.axis("n")), value, guard=inside)]
    return b.case("scattered", {"p": torch.arange(m).flip(0)})


def rotary(m, heads, d, k, dtype="bf16", interleaved=False) -> Case:
    """Queries and keys with their rotary embedding, of halves of heads or of neighbours, and values
    beside them; `heads`: of each."""
    *turned, plain = heads
    parts = [_turned(f"{n}", m, count, d, k, dtype, interleaved) for n, count in enumerate(turned)]
    values = Body(dtype, m=m, n=plain * d, k=k)
    values.write("v", "mn", values.dot(values.read("x", "mk"), values.read("wv", "nk")))
    cases = [p.case("rotary") for p in (*parts, values)]
    buffers = {name: b for c in cases for name, b in c.buffers.items()}
    return Case("rotary", concatenated([c.comp for c in cases]), buffers)


def _turned(name: str, m, heads, d, k, dtype: str, interleaved: bool) -> Body:
    b = Body(dtype, m=m, h=heads, j=d // 2, n=heads * d, d=d, k=k)
    b.declare(f"w{name}", "nk")
    b.declare(f"y{name}", "hmd")
    del b.extents["n"], b.extents["d"]
    h, m, j, k = (affine.axis(a) for a in "hmjk")
    columns = (j * 2, j * 2 + 1) if interleaved else (j, j + d // 2)
    x, cos, sin = b.read("x", "mk"), b.read("cos", "mj"), b.read("sin", "mj", dtypes.f32)
    weights = (b.builder.load(f"w{name}", (h * d + c, k), b.dtype) for c in columns)
    low, high = (b.dot(x, b.builder.widen(w)) for w in weights)
    results = (
        b.op("sub", b.op("mul", low, cos), b.op("mul", high, sin)),
        b.op("add", b.op("mul", high, cos), b.op("mul", low, sin)),
    )
    b.stores = [Store(f"y{name}", (h, m, column), b.builder.cast(value, b.dtype))
                for column, value in zip(columns, results)]  # fmt: skip
    return b


def summed(m, n, k, dtype="bf16", sizes=None) -> Case:
    """The gradient before an activation, and that of its bias: sums of its columns."""
    b = Body(dtype, m=m, n=n, k=k)
    made = b.op("mul", b.dot(b.read("x", "mk"), b.read("w", "kn")), b.read("a", "mn"))
    b.write("y", "mn", made)
    b.declare("s", "n", dtypes.f32)
    b.stores.append(Store("s", b.index("n"), b.rounded(made), combine="add", init=0.0))
    return b.case("summed", None, sizes)


def summed_halves(m, n, k, dtype="bf16") -> Case:
    """Two results of a product side by side, and the sums of their columns in one vector: the
    gradients of a gated layer's two halves, and of its bias."""
    b = Body(dtype, m=m, n=n, k=k, h=2 * n)
    b.declare("y", "mh")
    b.declare("s", "h", dtypes.f32)
    made = b.dot(b.read("x", "mk"), b.read("w", "kn"))
    for half, factor in enumerate(("a", "b")):
        part = b.op("mul", made, b.read(factor, "mn"))
        column = affine.axis("n") + half * n
        b.stores.append(Store("y", (affine.axis("m"), column), b.builder.cast(part, b.dtype)))
        b.stores.append(Store("s", (column,), b.rounded(part), combine="add", init=0.0))
    del b.extents["h"]
    return b.case("summed_halves")


def gelu_backward(m, n, k, dtype="bf16") -> Case:
    """The gradient before a gelu by tanh, and that of the bias before it."""
    b = Body(dtype, m=m, n=n, k=k)
    x = b.read("a", "mn")
    inner = b.op("mul", b.op("add", x, b.op("mul", b.op("mul", x, b.op("mul", x, x)), 0.044715)),
                 0.7978845608028654)  # fmt: skip
    t = b.op("tanh", inner)
    slope = b.op("mul", b.op("sub", 1.0, b.op("mul", t, t)), b.op("mul", x, 0.5))
    slope = b.op("mul", slope, b.op("add", b.op("mul", b.op("mul", x, x), 0.1070322243), 0.7978845))
    slope = b.op("add", slope, b.op("mul", b.op("add", t, 1.0), 0.5))
    made = b.op("mul", b.dot(b.read("x", "mk"), b.read("w", "kn")), slope)
    b.write("y", "mn", made)
    b.declare("s", "n", dtypes.f32)
    b.stores.append(Store("s", b.index("n"), b.rounded(made), combine="add", init=0.0))
    return b.case("gelu_backward")


def dropout(m, n, k, dtype="bf16") -> Case:
    """Also what was dropped."""
    b = Body(dtype, m=m, n=n, k=k)
    made = b.dot(b.read("x", "mk"), b.read("w", "nk"))
    at = b.builder.index(affine.axis("m") * n + affine.axis("n"))
    uniform = b.builder.emit(Op("philox", (b.read("seed", "", dtypes.i64), at), dtypes.f32))
    kept = b.op("gt", uniform, 0.3)
    b.write("y", "mn", b.op("where", kept, made, b.builder.const(0.0, dtypes.f32)))
    b.write("kept", "mn", kept, dtypes.b1)
    return b.case("dropout", {"seed": torch.tensor(-987654321987654321)})


def lower_half(m, n, k, dtype="bf16") -> Case:
    """Only what is on or below the diagonal is stored, else zero, beside a guarded load."""
    b = Body(dtype, m=m, n=n, k=k)
    row, column = (b.builder.index(affine.axis(a)) for a in "mn")
    below = b.op("ge", row, column)
    b.declare("r", "mn", b.dtype, 0)
    kept = b.builder.widen(b.builder.load("r", b.index("mn"), b.dtype, below, 7.0))
    made = b.op("add", b.dot(b.read("x", "mk"), b.read("w", "nk")), kept)
    b.write("y", "mn", made)
    b.write("z", "mn", made, guard=below)
    b.write("z", "mn", b.builder.const(0.0, dtypes.f32), guard=b.op("logical_not", below))
    return b.case("lower_half")


def hard(case: Case, rows: int, depth: int) -> Case:
    """NaN, infinities and zeros in some rows of x."""
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(rows, depth, generator=generator)
    x[: len(HARD), 0] = HARD[:rows]
    return replace(case, name=f"{case.name}_hard", fill={**case.fill, "x": x})
