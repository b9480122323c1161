"""Comps that the Triton tests share: the IR's text, buffers, and how to fill them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch

from torchweld.core import dtypes
from torchweld.ir import interpret
from torchweld.ir.access import addressed
from torchweld.ir.nodes import Buffer, Comp
from torchweld.ir.parser import parse_comp
from torchweld.ir.size import Size, evaluate, product, symbol
from torchweld.templates.pointwise_reduce.gpu.prepare import prepared_comp
from torchweld.templates.pointwise_reduce.gpu.schedule import Schedule
from torchweld.templates.pointwise_reduce.stretches import _in_stretches


@dataclass(frozen=True)
class Case:
    """`fill`: buffer -> tensor, where random numbers will not do. `sizes`: values of the symbols.
    `schedule`: None for the default."""

    name: str
    comp: Comp
    buffers: dict[str, Buffer]
    fill: Mapping = field(default_factory=dict)
    sizes: Mapping[str, int] = field(default_factory=dict)
    schedule: Schedule | None = None


def title(case: Case) -> str:
    """linear-129x333x104, for the name of a test"""
    return f"{case.name}-{'x'.join(str(a.extent) for a in case.comp.axes)}"


def case(name: str, axes: str, body: str, fill=None, sizes=None, **described) -> Case:
    """`described`: buffer=(dtype, *shape) or (dtype, shape, strides); a str in a shape is a
    symbol."""
    comp = parse_comp(f"comp {name} [{axes}] {{\n{body}\n}}")
    return Case(
        name, comp, {n: _buffer(n, d) for n, d in described.items()}, fill or {}, sizes or {}
    )


def _buffer(name: str, described: tuple) -> Buffer:
    dtype, *rest = described
    shape, strides = rest if rest and isinstance(rest[0], tuple) else (tuple(rest), None)
    shape = tuple(symbol(e) if isinstance(e, str) else e for e in shape)
    strides = strides or tuple(product(shape[k + 1 :]) for k in range(len(shape)))
    return Buffer(name, shape, dtypes.BY_NAME[dtype], strides, "cuda:0")


def tensors(case: Case, device: str = "cpu", seed: int = 0) -> dict[str, torch.Tensor]:
    """All buffers, each in memory whose gaps hold NaN (or junk): what is read is random, what is
    written is junk."""
    generator = torch.Generator().manual_seed(seed)
    made = {n: _tensor(case, b, generator) for n, b in case.buffers.items()}
    return {n: _moved(t, device) for n, t in made.items()}


def _tensor(case: Case, buffer: Buffer, generator) -> torch.Tensor:
    shape = [evaluate(e, case.sizes) for e in buffer.shape]
    strides = [evaluate(s, case.sizes) for s in buffer.strides]
    dtype = dtypes.to_torch(buffer.dtype)
    span = 1 + sum((e - 1) * s for e, s in zip(shape, strides)) if 0 not in shape else 0
    memory = torch.full((span,), float("nan") if dtype.is_floating_point else 1).to(dtype)
    if buffer.name in case.fill or buffer.name in case.comp.reads:
        values = case.fill.get(buffer.name)
        values = _random(shape, dtype, generator) if values is None else values.reshape(shape)
        once = [e if s else min(e, 1) for e, s in zip(shape, strides)]  # of an expanded dimension
        memory.as_strided(once, strides).copy_(values[tuple(map(slice, once))])
    return memory.as_strided(shape, strides)


def _random(shape, dtype, generator) -> torch.Tensor:
    if dtype.is_floating_point:
        return torch.randn(shape, generator=generator).to(dtype)
    if dtype == torch.bool:
        return torch.rand(shape, generator=generator) < 0.5
    return torch.randint(0 if dtype == torch.uint8 else -7, 8, shape, generator=generator).to(dtype)


def _moved(tensor: torch.Tensor, device: str) -> torch.Tensor:
    """With its strides, which `to` would not keep."""
    span = 1 + sum((e - 1) * s for e, s in zip(tensor.shape, tensor.stride()))
    span = 0 if 0 in tensor.shape else span
    memory = tensor.as_strided((span,), (1,)).to(device)
    return memory.as_strided(tensor.shape, tensor.stride())


def expected(case: Case, inputs: Mapping[str, torch.Tensor], exact: bool) -> dict:
    """What the interpreter gives, on the CPU, for the Comp's writes: in float64 (`exact`), or in
    the dtypes of the program."""
    layouts = {n: replace(b, device="cpu") for n, b in case.buffers.items()}
    return interpret.run_comp(case.comp, dict(inputs), layouts, case.sizes, exact)


def transposed_copy(rows: int, columns: int) -> Case:
    return case("transposed_copy", f"i:{rows}, j:{columns}",
                "%0 = load x[j, i] : f32\nstore y[i, j] %0",
                x=("f32", columns, rows), y=("f32", rows, columns))  # fmt: skip


def channels_first(batch: int, groups: int, channels: int, pixels: int, dtype: str) -> Case:
    """An image with channels last, in groups, scaled and written with channels first."""
    return case("channels_first", f"b:{batch}, g:{groups}, c:{channels}, p:{pixels}", f"""
      %0 = load x[b, p, {channels}*g+c] : {dtype}
      %1 = cast %0 : f32
      %2 = load s[b, g] : f32
      %3 = mul %1 %2 : f32
      %4 = cast %3 : {dtype}
      store y[b, g, c, p] %4""",
      x=(dtype, batch, pixels, groups * channels), s=("f32", batch, groups),
      y=(dtype, batch, groups, channels, pixels))  # fmt: skip


def rotary(batch: int, length: int, heads: int, width: int) -> Case:
    """x * cos + rotate_half(x) * sin, and [b, s, h, d] becomes [b, h, s, d]."""
    half = width // 2
    return case("rotary", f"b:{batch}, s:{length}, h:{heads}, d:{width}", f"""
      %0 = load x[b, s, h, d] : bf16
      %1 = cast %0 : f32
      %2 = index d : i64
      %3 = const {half} : i64
      %4 = lt %2 %3 : b1
      %5 = load x[b, s, h, d+{half}] if %4 else 0.0 : bf16
      %6 = cast %5 : f32
      %7 = neg %6 : f32
      %8 = ge %2 %3 : b1
      %9 = load x[b, s, h, d-{half}] if %8 else 0.0 : bf16
      %10 = cast %9 : f32
      %11 = where %4 %7 %10 : f32
      %12 = load cos[s, d] : f32
      %13 = mul %1 %12 : f32
      %14 = load sin[s, d] : f32
      %15 = mul %11 %14 : f32
      %16 = add %13 %15 : f32
      %17 = cast %16 : bf16
      store y[b, h, s, d] %17""",
      x=("bf16", batch, length, heads, width), cos=("f32", length, width),
      sin=("f32", length, width), y=("bf16", batch, heads, length, width))  # fmt: skip


POINTWISE = [
    case("bias_gelu", "i:37, j:300",
         """%0 = load x[i, j] : bf16
            %1 = cast %0 : f32
            %2 = load b[j] : bf16
            %3 = cast %2 : f32
            %4 = add %1 %3 : f32
            %5 = const 0.7071067811865476 : f32
            %6 = mul %4 %5 : f32
            %7 = erf %6 : f32
            %8 = const 1.0 : f32
            %9 = add %7 %8 : f32
            %10 = mul %4 %9 : f32
            %11 = const 0.5 : f32
            %12 = mul %10 %11 : f32
            %13 = cast %12 : bf16
            store y[i, j] %13""",
         x=("bf16", 37, 300), b=("bf16", 300), y=("bf16", 37, 300)),
    case("gated", "i:5, j:257",
         """%0 = load g[i, j] : f32
            %1 = sigmoid %0 : f32
            %2 = mul %0 %1 : f32
            %3 = load u[i, j] : f32
            %4 = mul %2 %3 : f32
            store y[i, j] %4""",
         g=("f32", 5, 257), u=("f32", 5, 257), y=("f32", 5, 257)),
    transposed_copy(70, 100),
    channels_first(3, 2, 4, 77, "f16"),
    channels_first(2, 5, 1, 33, "f16"),
    case("permuted_gaps", "i:3, j:5, k:40, l:17",
         """%0 = load x[j, l, i, k] : f16
            %1 = cast %0 : f32
            %2 = load s[] : f32
            %3 = mul %1 %2 : f32
            store y[i, j, k, l] %3""",
         x=("f16", (5, 17, 3, 40), (2600, 150, 45, 1)), s=("f32",), y=("f32", 3, 5, 40, 17)),
    case("empty", "i:0, j:16", "%0 = load x[i, j] : f32\nstore y[i, j] %0",
         x=("f32", 0, 16), y=("f32", 0, 16)),
    case("one", "i:1", "%0 = load x[i] : f32\n%1 = exp %0 : f32\nstore y[i] %1",
         x=("f32", 1), y=("f32", 1)),
    case("whole", "", "%0 = load x[] : f32\n%1 = exp %0 : f32\nstore y[] %1",
         x=("f32",), y=("f32",)),
    case("filled", "i:1000",
         "%0 = const 2.5 : f32\n%1 = index 3*i+1 : i64\nstore y[i] %0\nstore z[i] %1",
         y=("f32", 1000), z=("i64", 1000)),
    case("cat_rows", "i:50, j:33",
         """%0 = index i : i64
            %1 = const 20 : i64
            %2 = lt %0 %1 : b1
            %3 = load a[i, j] if %2 else 0.0 : f32
            %4 = ge %0 %1 : b1
            %5 = load b[i-20, j] if %4 else 0.0 : f32
            %6 = where %2 %3 %5 : f32
            store y[i, j] %6""",
         a=("f32", 20, 33), b=("f32", 30, 33), y=("f32", 50, 33)),
    case("guarded_constant", "i:17",
         """%0 = index i : i64
            %1 = const 3 : i64
            %2 = lt %0 %1 : b1
            %3 = load x[5] if %2 else 7.0 : f16
            %4 = load x[6] : f16
            %5 = cast %3 : f32
            %6 = cast %4 : f32
            %7 = mul %5 %6 : f32
            store y[i] %7""",
         x=("f16", 9), y=("f32", 17)),
    case("embedding", "i:40, j:64",
         """%0 = load ids[i] : i64
            %1 = load table[%0, j] : bf16
            store y[i, j] %1""",
         fill={"ids": torch.arange(40) * 7 % 11}, ids=("i64", 40), table=("bf16", 11, 64),
         y=("bf16", 40, 64)),
    rotary(2, 13, 3, 32),
    case("dropout", "i:9, j:70",
         """%0 = load seed[] : i64
            %1 = index 70*i+j : i64
            %2 = philox %0 %1 : f32
            %3 = const 0.3 : f32
            %4 = gt %2 %3 : b1
            %5 = load x[i, j] : f32
            %6 = const 0.0 : f32
            %7 = where %4 %5 %6 : f32
            store y[i, j] %7
            store u[i, j] %2
            store m[i, j] %4""",
         fill={"seed": torch.tensor(-987654321987654321)}, seed=("i64",), x=("f32", 9, 70),
         y=("f32", 9, 70), u=("f32", 9, 70), m=("b1", 9, 70)),
    case("scatter_count", "i:100",
         """%0 = load at[i] : i64
            %1 = const 1 : i64
            store.add y[%0] %1 init 0""",
         fill={"at": torch.arange(100) % 7}, at=("i64", 100), y=("i64", 7)),
    case("scatter_expanded", "i:5, j:3",
         """%0 = load at[i] : i64
            %1 = load x[j] : i64
            store.add y[%0] %1 init 0""",
         at=("i64", (5,), (0,)), x=("i64", (3,), (0,)), y=("i64", 7),
         fill={"at": torch.full((5,), 2)}),
    case("scatter_sums", "i:37, j:5, k:20",
         """%0 = load at[i] : i64
            %1 = load x[i, k, j] : bf16
            %2 = cast %1 : f32
            %3 = load w[i, j] : f32
            %4 = mul %2 %3 : f32
            %5 = const 2 : i64
            %6 = ne %0 %5 : b1
            store.add y[j, %0, k] %4 init 0.5 if %6""",
         fill={"at": torch.arange(37) * 3 % 7}, at=("i64", 37), x=("bf16", 37, 20, 5),
         w=("f32", 37, 5), y=("f32", 5, 7, 20)),
    case("symbolic", "i:s0, j:24",
         """%0 = load x[i, j] : bf16
            %1 = load t[j, i] : bf16
            %2 = cast %0 : f32
            %3 = cast %1 : f32
            %4 = add %2 %3 : f32
            %5 = cast %4 : bf16
            store y[i, j] %5""",
         sizes={"s0": 61}, x=("bf16", "s0", 24), t=("bf16", 24, "s0"), y=("bf16", "s0", 24)),
]  # fmt: skip


_INT_OPS = "floor_div trunc_div remainder fmod minimum maximum bit_and bit_xor"
_FLOAT_OPS = """
    floor_div trunc_div remainder fmod minimum maximum fmin fmax div atan2 copysign hypot nextafter
"""
_UNARY = """
    neg abs sign ceil floor round trunc sqrt rsqrt reciprocal exp exp2 expm1 log log2 log10 log1p
    sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh erf sigmoid
"""
HARD = torch.tensor([0.0, -0.0, 1.0, -1.0, 0.5, 1.5, 2.5, -2.5, 1e-8, -1e-8, 1e30, 88.0,
                     -104.0, 1e-40, float("inf"), float("-inf"), float("nan")])  # fmt: skip


def float8(dtype: str, bits: torch.Tensor) -> Case:
    """float32 numbers of these bits to 8 bits, and all codes back."""
    values = bits.to(torch.int32).view(torch.float32)
    codes = torch.arange(len(bits)).to(torch.uint8).view(dtypes.to_torch(dtypes.BY_NAME[dtype]))
    return case("float8", f"i:{len(bits)}", f"""
      %0 = load x[i] : f32
      %1 = cast.round %0 : {dtype}
      %2 = load q[i] : {dtype}
      %3 = cast %2 : f32
      store y[i] %1
      store w[i] %3""", fill={"x": values, "q": codes},
      x=("f32", len(bits)), q=(dtype, len(bits)),
      y=(dtype, len(bits)), w=("f32", len(bits)))  # fmt: skip


def float8_bits(count: int) -> torch.Tensor:
    """Of float32: ties, neighbours of them and of the limits, denormals, infinities and NaN, and
    random ones."""
    high = torch.arange(0, 1 << 16, 8) << 16
    near = torch.cat([high + k for k in (-1, 0, 1)])
    limits = torch.tensor([464.0, 448.0, 480.0, 57344.0, 61440.0, 65536.0, 2.0**-10, 2.0**-17])
    edges = limits.view(torch.int32).long()[:, None] + torch.arange(-2, 3)
    some = torch.randint(0, 1 << 32, (count,), generator=torch.Generator().manual_seed(0))
    return torch.cat([near, edges.flatten(), edges.flatten() + (1 << 31), some]) % (1 << 32)


def unary(name: str, dtype: str) -> Case:
    values = torch.cat([HARD, torch.linspace(-4, 4, 64)]).to(dtypes.to_torch(dtypes.BY_NAME[dtype]))
    n = len(values)
    return case(f"unary_{name}_{dtype}", f"i:{n}",
                f"%0 = load x[i] : {dtype}\n%1 = {name} %0 : {dtype}\nstore y[i] %1",
                fill={"x": values}, x=(dtype, n), y=(dtype, n))  # fmt: skip


def binary(name: str, dtype: str) -> Case:
    kind = dtypes.BY_NAME[dtype]
    values = HARD if kind.is_float else torch.tensor([-7, -3, -1, 1, 2, 5, 9])
    n = len(values)
    a, b = (
        g.reshape(-1).to(dtypes.to_torch(kind))
        for g in torch.meshgrid(values, values, indexing="ij")
    )
    return case(f"{name}_{dtype}", f"i:{n * n}",
                f"%0 = load a[i] : {dtype}\n%1 = load b[i] : {dtype}\n"
                f"%2 = {name} %0 %1 : {dtype}\nstore y[i] %2",
                fill={"a": a, "b": b},
                a=(dtype, n * n), b=(dtype, n * n), y=(dtype, n * n))  # fmt: skip


SCALARS = (
    [unary(n, d) for n in _UNARY.split() for d in ("f32", "f64")]
    + [binary(n, d) for n in _FLOAT_OPS.split() for d in ("f32", "f64")]
    + [binary(n, d) for n in _INT_OPS.split() for d in ("i32", "i64")]
)


def reduction(
    monoid: str, rows: int, columns: int, dtype: str = "f32", dim: int = 1, fill=None
) -> Case:
    """One reduction of x[rows, columns]; `dim` 0 reduces the rows."""
    kept, over = ("i", "j") if dim == 1 else ("j", "i")
    count = rows if dim == 1 else columns
    picks = {"argmax": 2, "argmin": 2, "welford": 2, "logsumexp": 2}.get(monoid, 1)
    position = monoid.startswith("arg")
    lines = [f"%0 = load x[i, j] : {dtype}", f"%1 = index {over} : i64",
             f"%2 = reduce.{monoid}[{over}] %0{' %1' if position else ''} : {dtype}"]  # fmt: skip
    results = {"y": (dtype, count)}
    if picks == 2:
        other = "i64" if position else dtype
        results["z"] = (other, count)
        lines += [f"%3 = pick.0 %2 : {dtype}", f"%4 = pick.1 %2 : {other}",
                  f"store y[{kept}] %3", f"store z[{kept}] %4"]  # fmt: skip
    else:
        lines.append(f"store y[{kept}] %2")
    name = f"{monoid}_{dtype}_{rows}x{columns}_dim{dim}"
    return case(
        name,
        f"i:{rows}, j:{columns}",
        "\n".join(lines),
        fill=fill,
        x=(dtype, rows, columns),
        **results,
    )


def middle(
    monoid: str, outer: int, length: int, inner: int, dtype: str = "f32", fill=None
) -> Case:
    """A reduction over the middle dimension of x[outer, length, inner], in float32 and more: its
    last result."""
    wide = "f64" if dtype == "f64" else "f32"
    position = monoid.startswith("arg")
    last = "i64" if position else wide
    several = position or monoid in ("welford", "logsumexp")
    lines = [f"%0 = load x[i, k, j] : {dtype}", f"%1 = cast %0 : {wide}", "%2 = index k : i64",
             f"%3 = reduce.{monoid}[k] %1{' %2' if position else ''} : {wide}"]  # fmt: skip
    lines += [f"%4 = pick.1 %3 : {last}", "store y[i, j] %4"] if several else ["store y[i, j] %3"]
    return case(f"{monoid}_{dtype}_middle", f"i:{outer}, k:{length}, j:{inner}", "\n".join(lines),
                fill=fill, x=(dtype, outer, length, inner),
                y=(last, outer, inner))  # fmt: skip


INVERSES = {
    "reciprocal": "%1 = reciprocal %0 : f32\nstore y[i] %1",
    "sigmoid": "%1 = sigmoid %0 : f32\nstore y[i] %1",
    "one": "%1 = const 1.0 : f32\n%2 = div %1 %0 : f32\nstore y[i] %2",
}


POWERS = (3, 4, 7, 12, 16, 31, 32, -3, -6, -7, -12, -32, 1.5, -1.5, 2.5, 15.5, -15.5)


def power(exponent: float) -> str:
    """As INVERSES are."""
    return f"%1 = const {float(exponent)} : f32\n%2 = pow %0 %1 : f32\nstore y[i] %2"


def inverse(text: str, points: int, dtype: str = "f32") -> Case:
    """A text as INVERSES are, of any numbers: infinite, zero, subnormal."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(points, generator=generator) * 2.0 ** torch.linspace(-150, 120, points)
    x[:6] = torch.tensor([0.0, -0.0, math.inf, -math.inf, math.nan, 2.0**-149])
    text = f"%0 = load x[i] : f32\n{text}".replace("f32", dtype)
    x = x.to(dtypes.to_torch(dtypes.BY_NAME[dtype]))
    return case("inverse", f"i:{points}", text, fill={"x": x},
                x=(dtype, points), y=(dtype, points))  # fmt: skip


def scaled_middle(outer: int, heads: int, length: int, inner: int) -> Case:
    """Of x[outer, heads, length, inner], in another order in memory: a softmax over `length`, with
    a factor for each head, and a number for each row of each head."""
    return case("scaled_middle", f"b:{outer}, h:{heads}, k:{length}, j:{inner}", """
      %0 = load x[h, b, k, j] : f32
      %1 = load s[h] : f32
      %2 = mul %0 %1 : f32
      %3 = reduce.max[k] %2 : f32
      %4 = sub %2 %3 : f32
      %5 = exp %4 : f32
      %6 = reduce.sum[k] %5 : f32
      %7 = div %5 %6 : f32
      %8 = load t[k, h] : f32
      %9 = mul %7 %8 : f32
      store y[b, h, k, j] %9
      store m[j, b, h] %3
      store u[b, h] %1""",
      x=("f32", heads, outer, length, inner), s=("f32", heads), t=("f32", length, heads),
      y=("f32", outer, heads, length, inner), m=("f32", inner, outer, heads),
      u=("f32", outer, heads))  # fmt: skip


def scaled_sum(rows: int, columns: int) -> Case:
    """A sum over the columns, and, of the same rows, a result that has none."""
    return case("scaled_sum", f"i:{rows}, j:{columns}", """
      %0 = load s[i] : f32
      %1 = mul %0 %0 : f32
      %2 = load x[i, j] : f32
      %3 = mul %2 %1 : f32
      %4 = reduce.sum[j] %3 : f32
      store y[i] %4
      store t[i] %1""",
      s=("f32", rows), x=("f32", rows, columns), y=("f32", rows), t=("f32", rows))  # fmt: skip


def equal_numbers(columns: int) -> torch.Tensor:
    """Four rows full of ties: of few integers, with NaN among them, of -inf, of inf."""
    rows = torch.arange(columns).repeat(4, 1) * 7 % 5.0
    rows[1, columns // 3 :: 9] = float("nan")
    rows[2:] = torch.tensor([[float("-inf")], [float("inf")]])
    return rows


def places(monoid: str) -> list[Case]:
    """Positions of extremes among ties and NaN, by rows in registers and by loops: along memory and
    across it, and of two dimensions with one that is kept between them."""
    rows = equal_numbers(101)
    along = reduction(monoid, 4, 101, fill={"x": rows})
    across = reduction(monoid, 101, 4, dim=0, fill={"x": rows.T})
    around = case(f"{monoid}_around", "i:7, j:4, k:13", f"""
      %0 = load x[i, j, k] : f32
      %1 = index 13*i+k : i64
      %2 = reduce.{monoid}[i, k] %0 %1 : f32
      %3 = pick.1 %2 : i64
      store z[j] %3""", fill={"x": equal_numbers(91).reshape(4, 7, 13).transpose(0, 1)},
      x=("f32", 7, 4, 13), z=("i64", 4))  # fmt: skip
    whole = [along, across, around]
    return whole + [looped(c, 16, splits) for c in whole for splits in (1, 3)]


def offset_moments(rows: int, columns: int) -> Case:
    """The sum of squares around a mean that is a thousand times the spread, told apart from one
    that lost a part in 10^5 of it."""
    x = torch.randn(rows, columns, generator=torch.Generator().manual_seed(3)) + 1000
    return reduction("welford", rows, columns, fill={"x": x})


def looped(case: Case, block: int, splits: int = 1, block_rows: int = 2) -> Case:
    """The same with a loop over blocks of columns, shared by `splits` programs."""
    frame = addressed(case.comp, case.buffers, case.sizes).frame
    schedule = Schedule("looped", frame.rows, frame.columns, block_rows, block, 4, splits)
    return replace(case, name=f"{case.name}_looped{splits}", schedule=schedule)


def prepared(case: Case) -> Case:
    """As it is generated of a plan: indices in 32 bits where they fit."""
    return replace(case, comp=prepared_comp(case.comp, case.buffers, case.sizes))


def apart(case: Case, form: str, block_rows: int, block: int, splits: int = 1) -> Case:
    """The same with one point of all row axes but the last for each program."""
    frame = addressed(case.comp, case.buffers, case.sizes).frame
    *outer, inner = frame.rows
    schedule = Schedule(form, (inner,), frame.columns, block_rows, block, 4, splits, 1, (*outer,))
    return replace(case, name=f"{case.name}_{form}{splits}", schedule=schedule)


def flat(case: Case, block: int) -> Case:
    """A pointwise case in one dimension, in small blocks."""
    rows = addressed(case.comp, case.buffers, case.sizes).frame.rows
    return replace(case, name=f"{case.name}_flat", schedule=Schedule("grid", (), rows, 1, block, 1))


def tiled(case: Case, block: int) -> Case:
    """A pointwise case of two axes, a block of one row for each program."""
    rows, columns = addressed(case.comp, case.buffers, case.sizes).frame.rows
    return replace(case, schedule=Schedule("grid", (rows,), (columns,), 1, block, 1))


MONOIDS = ("sum", "prod", "max", "min", "argmax", "argmin", "welford", "logsumexp")


def softmax(rows: Size, columns: Size, sizes=None, dtype: str = "f32", fill=None) -> Case:
    narrow = dtype != "f32"
    body = f"""%0 = load x[i, j] : {dtype}
        %1 = {"cast" if narrow else "abs"} %0 : f32
        %2 = const 0.125 : f32
        %3 = mul %1 %2 : f32
        %4 = load m[j] : f32
        %5 = add %3 %4 : f32
        %6 = reduce.max[j] %5 : f32
        %7 = sub %5 %6 : f32
        %8 = exp %7 : f32
        %9 = reduce.sum[j] %8 : f32
        %10 = div %8 %9 : f32
        {f"%11 = cast %10 : {dtype}" if narrow else ""}
        store y[i, j] %{11 if narrow else 10}"""
    return case(f"softmax_{dtype}_{rows}x{columns}", f"i:{rows}, j:{columns}", body, fill, sizes,
                x=(dtype, rows, columns), m=("f32", columns), y=(dtype, rows, columns))  # fmt: skip


def exponentials(rows: int, columns: int, fill=None, keeps: bool = False) -> Case:
    """The maximum of a row, and the sum that its softmax is divided by; `keeps`: as in logsumexp,
    which subtracts no infinity."""
    body = f"""%0 = load x[i, j] : f32
        %1 = load m[j] : f32
        %2 = add %0 %1 : f32
        %3 = reduce.max[j] %2 : f32
        %4 = abs %3 : f32
        %5 = const inf : f32
        %6 = eq %4 %5 : b1
        %7 = const 0.0 : f32
        %8 = where %6 %7 %3 : f32
        %9 = sub %2 %{8 if keeps else 3} : f32
        %10 = exp %9 : f32
        %11 = reduce.sum[j] %10 : f32
        store top[i] %3
        store total[i] %11"""
    return case(f"exponentials_{rows}x{columns}", f"i:{rows}, j:{columns}", body, fill,
                x=("f32", rows, columns), m=("f32", columns),
                top=("f32", rows), total=("f32", rows))  # fmt: skip


def add_layer_norm(rows: Size, columns: int, sizes=None) -> Case:
    """s = x + r, y = layer_norm(s) * w + b, in bf16."""
    return case("add_layer_norm", f"i:{rows}, j:{columns}", f"""
      %0 = load x[i, j] : bf16
      %1 = cast %0 : f32
      %2 = load r[i, j] : bf16
      %3 = cast %2 : f32
      %4 = add %1 %3 : f32
      %5 = cast %4 : bf16
      %6 = cast %5 : f32
      %7 = reduce.welford[j] %6 : f32
      %8 = pick.0 %7 : f32
      %9 = pick.1 %7 : f32
      %10 = const {float(columns)} : f32
      %11 = div %9 %10 : f32
      %12 = const 1e-05 : f32
      %13 = add %11 %12 : f32
      %14 = rsqrt %13 : f32
      %15 = sub %6 %8 : f32
      %16 = mul %15 %14 : f32
      %17 = load w[j] : bf16
      %18 = cast %17 : f32
      %19 = mul %16 %18 : f32
      %20 = load b[j] : bf16
      %21 = cast %20 : f32
      %22 = add %19 %21 : f32
      %23 = cast %22 : bf16
      store s[i, j] %5
      store y[i, j] %23""", sizes=sizes,
      x=("bf16", rows, columns), r=("bf16", rows, columns), w=("bf16", columns),
      b=("bf16", columns), s=("bf16", rows, columns), y=("bf16", rows, columns))  # fmt: skip


def add_rms_norm(rows: int, columns: int) -> Case:
    return case("add_rms_norm", f"i:{rows}, j:{columns}", f"""
      %0 = load x[i, j] : bf16
      %1 = cast %0 : f32
      %2 = load r[i, j] : bf16
      %3 = cast %2 : f32
      %4 = add %1 %3 : f32
      %5 = cast %4 : bf16
      %6 = cast %5 : f32
      %7 = mul %6 %6 : f32
      %8 = reduce.sum[j] %7 : f32
      %9 = const {float(columns)} : f32
      %10 = div %8 %9 : f32
      %11 = const 1e-06 : f32
      %12 = add %10 %11 : f32
      %13 = rsqrt %12 : f32
      %14 = mul %6 %13 : f32
      %15 = load w[j] : bf16
      %16 = cast %15 : f32
      %17 = mul %14 %16 : f32
      %18 = cast %17 : bf16
      store s[i, j] %5
      store y[i, j] %18""",
      x=("bf16", rows, columns), r=("bf16", rows, columns), w=("bf16", columns),
      s=("bf16", rows, columns), y=("bf16", rows, columns))  # fmt: skip


def layer_norm_backward(rows: Size, columns: int, sizes=None) -> Case:
    """dx, dw and db from dy, x, mean and rstd: reductions over columns and over rows in one
    kernel."""
    return case("layer_norm_backward", f"i:{rows}, j:{columns}", f"""
      %0 = load dy[i, j] : bf16
      %1 = cast %0 : f32
      %2 = load x[i, j] : bf16
      %3 = cast %2 : f32
      %4 = load mean[i] : f32
      %5 = sub %3 %4 : f32
      %6 = load rstd[i] : f32
      %7 = mul %5 %6 : f32
      %8 = load w[j] : bf16
      %9 = cast %8 : f32
      %10 = mul %1 %9 : f32
      %11 = reduce.sum[j] %10 : f32
      %12 = mul %10 %7 : f32
      %13 = reduce.sum[j] %12 : f32
      %14 = const {1.0 / max(1, columns)} : f32
      %15 = mul %11 %14 : f32
      %16 = mul %13 %14 : f32
      %17 = sub %10 %15 : f32
      %18 = mul %7 %16 : f32
      %19 = sub %17 %18 : f32
      %20 = mul %19 %6 : f32
      %21 = cast %20 : bf16
      %22 = mul %1 %7 : f32
      %23 = reduce.sum[i] %22 : f32
      %24 = reduce.sum[i] %1 : f32
      %25 = cast %23 : bf16
      %26 = cast %24 : bf16
      store dx[i, j] %21
      store dw[j] %25
      store db[j] %26""", sizes=sizes,
      dy=("bf16", rows, columns), x=("bf16", rows, columns), mean=("f32", rows),
      rstd=("f32", rows), w=("bf16", columns), dx=("bf16", rows, columns), dw=("bf16", columns),
      db=("bf16", columns))  # fmt: skip


def gelu_mul(rows: int, columns: int) -> Case:
    return case("gelu_mul", f"i:{rows}, j:{columns}", """
      %0 = load g[i, j] : bf16
      %1 = cast %0 : f32
      %2 = const 0.7071067811865476 : f32
      %3 = mul %1 %2 : f32
      %4 = erf %3 : f32
      %5 = const 1.0 : f32
      %6 = add %4 %5 : f32
      %7 = mul %1 %6 : f32
      %8 = const 0.5 : f32
      %9 = mul %7 %8 : f32
      %10 = load u[i, j] : bf16
      %11 = cast %10 : f32
      %12 = mul %9 %11 : f32
      %13 = cast %12 : bf16
      store y[i, j] %13""",
      g=("bf16", rows, columns), u=("bf16", rows, columns), y=("bf16", rows, columns))  # fmt: skip


def guarded_sum(rows: int, columns: int) -> Case:
    """A store with a guard (true of finite sums) after a reduction."""
    return case("guarded_sum", f"i:{rows}, j:{columns}", """
      %0 = load x[i, j] : f32
      %1 = reduce.sum[j] %0 : f32
      %2 = const 0.0 : f32
      %3 = mul %1 %2 : f32
      %4 = eq %3 %2 : b1
      store y[i] %1 if %4""",
      x=("f32", rows, columns), y=("f32", rows))  # fmt: skip


def checked_embedding(rows: int, columns: int, dtype: str = "f32", first: int = -7) -> Case:
    """Rows of a table by indices of which some are out of range: NaN, and a flag that is set. The
    indices are `first`, `first` + 1, ..."""
    indices = torch.arange(first, first + rows)
    return case("checked_embedding", f"i:{rows}, j:{columns}", f"""
      %0 = load at[i] : i64
      %1 = const 0 : i64
      %2 = const 5 : i64
      %3 = ge %0 %1 : b1
      %4 = lt %0 %2 : b1
      %5 = bit_and %3 %4 : b1
      %6 = logical_not %5 : b1
      %7 = maximum %0 %1 : i64
      %8 = const 4 : i64
      %9 = minimum %7 %8 : i64
      %10 = load x[%9, j] if %5 else nan : {dtype}
      %11 = const True : b1
      store y[i, j] %10
      store outside[] %11 init 0 if %6""",
      at=("i64", rows), x=(dtype, 5, columns), y=(dtype, rows, columns), outside=("b1",),
      fill={"at": indices})  # fmt: skip


def doubled_and_summed(rows: int, columns: int) -> Case:
    """A pointwise result beside its sums over rows: memory runs along what is kept."""
    return case("doubled_and_summed", f"i:{rows}, j:{columns}", """
      %0 = load x[i, j] : f32
      %1 = add %0 %0 : f32
      %2 = reduce.sum[i] %1 : f32
      store y[i, j] %1
      store s[j] %2""",
      x=("f32", rows, columns), y=("f32", rows, columns), s=("f32", columns))  # fmt: skip


def row_scaled(rows: int, columns: int) -> Case:
    """Pointwise, but not in one dimension: a number for each row."""
    return case("row_scaled", f"i:{rows}, j:{columns}", """
      %0 = load x[i, j] : bf16
      %1 = cast %0 : f32
      %2 = load s[i] : f32
      %3 = mul %1 %2 : f32
      %4 = cast %3 : bf16
      store y[i, j] %4""",
      x=("bf16", rows, columns), s=("f32", rows), y=("bf16", rows, columns))  # fmt: skip


def many_weights(rows: int, columns: int, count: int = 15) -> Case:
    """Sums over columns of what each row has `count` weights for: more than a loop holds."""
    names, body = [f"w{n}" for n in range(count)], "%0 = load x[i, j] : f32\n"
    total, number = 0, 0
    for name in names:
        body += f"%{number + 1} = load {name}[i] : f32\n"
        body += f"%{number + 2} = mul %0 %{number + 1} : f32\n"
        body += f"%{number + 3} = maximum %{total} %{number + 2} : f32\n"
        number = total = number + 3
    body += f"%{number + 1} = reduce.sum[j] %{total} : f32\nstore y[i] %{number + 1}"
    weights = {name: ("f32", rows) for name in names}
    return case("many_weights", f"i:{rows}, j:{columns}", body,
                x=("f32", rows, columns), y=("f32", rows), **weights)  # fmt: skip


def shared_gathers(rows: int, columns: int, table: int) -> Case:
    """Sums of what is read at computed places, which lies along the columns, too."""
    at = torch.randint(0, table, (columns,), generator=torch.Generator().manual_seed(0))
    return case("shared_gathers", f"i:{rows}, j:{columns}", """
      %0 = load at[j] : i64
      %1 = load x[i, %0] : f32
      %2 = reduce.sum[j] %1 : f32
      store z[i, j] %1
      store y[i] %2""", fill={"at": at},
      at=("i64", columns), x=("f32", rows, table), z=("f32", rows, columns),
      y=("f32", rows))  # fmt: skip


def row_divided(columns: int) -> Case:
    """By a number of each row: zeros, infinities, NaN and tiny ones among both."""
    rows = len(HARD)
    x = torch.randn(rows, columns, generator=torch.Generator().manual_seed(0))
    x[:, : len(HARD)] = HARD[:columns]
    return case("row_divided", f"i:{rows}, j:{columns}", """
      %0 = load x[i, j] : f32
      %1 = load s[i] : f32
      %2 = div %0 %1 : f32
      store y[i, j] %2""", fill={"x": x, "s": HARD},
      x=("f32", rows, columns), s=("f32", rows), y=("f32", rows, columns))  # fmt: skip


def signed_zeros(dtype: str) -> Case:
    """Infinities of both signs: of zeros that are turned, and of a constant."""
    body = f"""%0 = load x[i] : {dtype}
        %1 = neg %0 : {dtype}
        %2 = reciprocal %1 : {dtype}
        %3 = const -0.0 : {dtype}
        %4 = eq %0 %3 : b1
        %5 = where %4 %3 %0 : {dtype}
        %6 = reciprocal %5 : {dtype}
        store y[i] %2
        store z[i] %6"""
    n, values = len(HARD), HARD.to(dtypes.to_torch(dtypes.BY_NAME[dtype]))
    return case(f"signed_zeros_{dtype}", f"i:{n}", body, fill={"x": values},
                x=(dtype, n), y=(dtype, n), z=(dtype, n))  # fmt: skip


def far(rows: int, columns: int, name: str, index: str) -> Case:
    """y[i] = max of x[i, j] + `index`: numbers of more than 32 bits from indices of fewer."""
    body = f"""%0 = load x[i, j] : i64
        %1 = index {index} : i64
        %2 = add %0 %1 : i64
        %3 = reduce.max[j] %2 : i64
        store y[i] %3"""
    return case(f"far_{name}", f"i:{rows}, j:{columns}", body,
                x=("i64", rows, columns), y=("i64", rows))  # fmt: skip


FAR = {
    "up": "7+30000000*j", "down": "7-30000000*j", "further": "7+300000000*j",
    "back": "4294967295-1*j",
}  # fmt: skip


def window(rows: int, columns: int) -> Case:
    """y[j] = exp(x[j - 3]), one where there is none, from rows that are further apart than y's."""
    body = """%0 = index -3+j : i64
        %1 = const 0 : i64
        %2 = ge %0 %1 : b1
        %3 = load x[i, -3+j] if %2 else 0.0 : f32
        %4 = exp %3 : f32
        store y[i, j] %4"""
    return case(f"window_{rows}x{columns}", f"i:{rows}, j:{columns}", body,
                x=("f32", (rows, columns), (columns + 3, 1)), y=("f32", rows, columns))  # fmt: skip


def cross_entropy(rows: int, columns: int) -> Case:
    return case("cross_entropy", f"i:{rows}, j:{columns}", """
      %0 = load x[i, j] : bf16
      %1 = cast %0 : f32
      %2 = reduce.logsumexp[j] %1 : f32
      %3 = pick.0 %2 : f32
      %4 = pick.1 %2 : f32
      %5 = log %4 : f32
      %6 = add %3 %5 : f32
      %7 = load at[i] : i64
      %8 = load x[i, %7] : bf16
      %9 = cast %8 : f32
      %10 = sub %6 %9 : f32
      store y[i] %10""",
      fill={"at": torch.arange(rows) * 13 % max(1, columns)},
      x=("bf16", rows, columns), at=("i64", rows), y=("f32", rows))  # fmt: skip


def cross_entropy_backward(rows: int, columns: int) -> Case:
    """From the gradient of each row's loss, its maximum and the logarithm of its sum."""
    return case("cross_entropy_backward", f"i:{rows}, j:{columns}", """
      %0 = load at[i] : i64
      %1 = index j : i64
      %2 = eq %0 %1 : b1
      %3 = load g[i] : f32
      %4 = const 0.0 : f32
      %5 = where %2 %3 %4 : f32
      %6 = reduce.sum[j] %5 : f32
      %7 = load x[i, j] : bf16
      %8 = cast %7 : f32
      %9 = load top[i] : f32
      %10 = sub %8 %9 : f32
      %11 = load log[i] : f32
      %12 = sub %10 %11 : f32
      %13 = exp %12 : f32
      %14 = mul %13 %6 : f32
      %15 = sub %5 %14 : f32
      %16 = cast %15 : bf16
      store dx[i, j] %16""",
      fill={"at": torch.arange(rows) * 13 % max(1, columns)},
      x=("bf16", rows, columns), at=("i64", rows), g=("f32", rows), top=("f32", rows),
      log=("f32", rows), dx=("bf16", rows, columns))  # fmt: skip


def softmax_gradients(rows: int, columns: int, count: int = 3) -> Case:
    """Of `count` softmaxes with one gradient: as many values of each column live side by side."""
    lines, stores, described = ["%0 = load g[i, j] : bf16", "%1 = cast %0 : f32"], [], {}
    for k in range(count):
        at = 2 + 8 * k
        lines += [
            f"%{at} = load x{k}[i, j] : bf16", f"%{at + 1} = cast %{at} : f32",
            f"%{at + 2} = load l{k}[i] : f32", f"%{at + 3} = sub %{at + 1} %{at + 2} : f32",
            f"%{at + 4} = exp %{at + 3} : f32", f"%{at + 5} = mul %1 %{at + 4} : f32",
            f"%{at + 6} = reduce.sum[j] %{at + 5} : f32",
            f"%{at + 7} = mul %{at + 4} %{at + 6} : f32",
        ]  # fmt: skip
        described |= {f"x{k}": ("bf16", rows, columns), f"l{k}": ("f32", rows)}
    for k in range(count):
        made = 2 + 8 * count + 2 * k
        lines.append(f"%{made} = sub %{7 + 8 * k} %{9 + 8 * k} : f32")
        lines.append(f"%{made + 1} = cast %{made} : bf16")
        stores.append(f"store y{k}[i, j] %{made + 1}")
        described[f"y{k}"] = ("bf16", rows, columns)
    return case(f"softmax_gradients_{rows}x{columns}", f"i:{rows}, j:{columns}",
                "\n".join(lines + stores), g=("bf16", rows, columns), **described)  # fmt: skip


def moments_of_equal_numbers(columns: int) -> Case:
    """Their sum is rounded: a mean of it alone is another number, and what is left of each a whole
    one."""
    return reduction("welford", 3, columns, fill={"x": torch.full((3, columns), 12345671.0)})


def cumulative(monoid: str, rows: int, columns: int, backwards: bool = False, fill=None) -> Case:
    at = f"-1*j+{columns - 1}" if backwards else "j"
    return case(f"cumulative_{monoid}{'_backwards' * backwards}", f"i:{rows}, j:{columns}",
                f"%0 = load x[i, {at}] : f32\n%1 = scan.{monoid}[j] %0 : f32\nstore y[i, {at}] %1",
                fill, x=("f32", rows, columns), y=("f32", rows, columns))  # fmt: skip


def in_order(rows: int, columns: int, dtype: str = "i64", backwards: bool = False) -> Case:
    """Each row sorted; `backwards`: it is read and written from its end."""
    at = f"-1*j+{columns - 1}" if backwards else "j"
    return case(f"in_order_{dtype}{'_backwards' * backwards}", f"i:{rows}, j:{columns}",
                f"%0 = load x[i, {at}] : {dtype}\n%1 = scan.sort[j] %0 : {dtype}\n"
                f"store y[i, {at}] %1",
                x=(dtype, rows, columns), y=(dtype, rows, columns))  # fmt: skip


def log_sums(rows: int, columns: int, dtype: str = "f32", fill=None) -> Case:
    """Down the columns of a matrix [columns, rows]: across memory."""
    return case(f"log_sums_{dtype}", f"i:{rows}, j:{columns}", f"""
      %0 = load x[j, i] : {dtype}
      %1 = cast %0 : f32
      %2 = scan.logaddexp[j] %1 : f32
      %3 = cast %2 : {dtype}
      store y[j, i] %3""" if dtype != "f32" else """
      %0 = load x[j, i] : f32
      %1 = scan.logaddexp[j] %0 : f32
      store y[j, i] %1""",
      fill, x=(dtype, columns, rows), y=(dtype, columns, rows))  # fmt: skip


def middle_scan(monoid: str, outer: int, length: int, inner: int) -> Case:
    """Along the middle dimension of three."""
    shape = ("f32", outer, length, inner)
    return prepared(case(f"middle_scan_{monoid}", f"i:{outer}, k:{length}, j:{inner}", f"""
      %0 = load x[i, k, j] : f32
      %1 = scan.{monoid}[k] %0 : f32
      store y[i, k, j] %1""", x=shape, y=shape))  # fmt: skip


def scan_down(monoid: str, rows: int, columns: int, kind: str = "f32") -> Case:
    """Down the columns of a matrix [columns, rows], with work behind it."""
    return case(f"scan_down_{monoid}", f"i:{rows}, j:{columns}", f"""
      %0 = load x[j, i] : {kind}
      %1 = scan.{monoid}[j] %0 : {kind}
      %2 = load w[i] : {kind}
      %3 = sub %1 %2 : {kind}
      store y[j, i] %3""",
      x=(kind, columns, rows), w=(kind, rows), y=(kind, columns, rows))  # fmt: skip


def stretches(whole: Case, length: int) -> list[Case]:
    """The kernels of a scan along `j` in stretches, each on numbers of its own."""
    made = _in_stretches(whole.comp, "j", length, whole.buffers)
    buffers = {**whole.buffers, **made.buffers}
    return [
        prepared(Case(c.name, c, {n: buffers[n] for n in (*c.reads, *c.writes)}, sizes=whole.sizes))
        for c in made.comps
    ]


def scan_of_equal_rows(monoid: str, rows: int, columns: int) -> Case:
    """What is scanned is the same for all rows, what is made of it is not. And the largest."""
    return prepared(case(f"scan_of_equal_rows_{monoid}", f"i:{rows}, j:{columns}", f"""
      %0 = load x[j] : f32
      %1 = scan.{monoid}[j] %0 : f32
      %2 = load w[i] : f32
      %3 = mul %1 %2 : f32
      %4 = reduce.max[j] %1 : f32
      store y[j, i] %3
      store s[i] %4""", x=("f32", columns), w=("f32", rows), y=("f32", columns, rows),
      s=("f32", rows)))  # fmt: skip


def loss_of_pixels(images: int, classes: int, pixels: int, dtype: str = "bf16") -> Case:
    """A loss with smoothed targets: three reductions over classes, which lie across memory."""
    shape = images, classes, pixels
    target = torch.arange(images * pixels).reshape(images, pixels) * 7 % classes
    return case(f"loss_of_pixels_{dtype}", f"n:{images}, p:{pixels}, c:{classes}", f"""
      %0 = load at[n, p] : i64
      %1 = load x[n, c, p] : {dtype}
      %2 = cast %1 : f32
      %3 = load b[c] : f32
      %4 = add %2 %3 : f32
      %5 = reduce.max[c] %4 : f32
      %6 = sub %4 %5 : f32
      %7 = exp %6 : f32
      %8 = reduce.sum[c] %7 : f32
      %9 = log %8 : f32
      %10 = sub %6 %9 : f32
      %11 = cast.round %10 : bf16
      %12 = cast %11 : f32
      %13 = reduce.sum[c] %12 : f32
      %14 = load x[n, %0, p] : {dtype}
      %15 = cast %14 : f32
      %16 = sub %15 %9 : f32
      %17 = mul %16 %13 : f32
      store y[n, p] %17""", {"at": target},
      at=("i64", images, pixels), x=(dtype, *shape), b=("f32", classes),
      y=("f32", images, pixels))  # fmt: skip


def stored_steps(outer: int, length: int, inner: int) -> Case:
    """A scan in the middle, what it is made of and what is made of it, all stored. Triton 3.6 did
    not compile it while they were stored in the order in which they are made."""
    shape = outer, length, inner
    made = {name: ("f32", *shape) for name in ("step", "sum", "decay", "y")}
    return case("stored_steps", f"i:{outer}, j:{inner}, k:{length}", """
      %0 = load x[i, k, j] : bf16
      %1 = load b[j] : bf16
      %2 = cast %0 : f32
      %3 = cast %1 : f32
      %4 = add %2 %3 : f32
      %5 = exp %4 : f32
      %6 = neg %5 : f32
      %7 = scan.sum[k] %6 : f32
      %8 = sub %7 %6 : f32
      %9 = exp %8 : f32
      %10 = load w[i, k, j] : bf16
      %11 = cast %10 : f32
      %12 = mul %11 %9 : f32
      store step[i, k, j] %6
      store sum[i, k, j] %7
      store decay[i, k, j] %9
      store y[i, k, j] %12""",
      x=("bf16", *shape), b=("bf16", inner), w=("bf16", *shape), **made)  # fmt: skip


def running_extreme(monoid: str, rows: int, columns: int, **described) -> Case:
    """The extreme so far, and the last place that reached it."""
    return prepared(case(f"running_{monoid}", f"i:{rows}, j:{columns}", f"""
      %0 = load x[i, j] : f32
      %1 = scan.{monoid}[j] %0 : f32
      %2 = index j : i64
      %3 = eq %0 %1 : b1
      %4 = ne %0 %0 : b1
      %5 = bit_or %3 %4 : b1
      %6 = const 0 : i64
      %7 = where %5 %2 %6 : i64
      %8 = scan.max[j] %7 : i64
      store y[i, j] %1
      store at[i, j] %8""",
      **{"x": ("f32", rows, columns), "y": ("f32", rows, columns), "at": ("i64", rows, columns),
         **described}))  # fmt: skip


def group_norm(images: int, groups: int, channels: int, pixels: int) -> Case:
    """y = (x - mean) / spread * w of groups of channels of images, and the mean, in bf16: weights
    change with the first axis of the columns."""
    shape = images, groups * channels, pixels
    return case(f"group_norm_{pixels}", f"n:{images}, g:{groups}, c:{channels}, p:{pixels}", f"""
      %0 = load x[n, {channels}*g+c, p] : bf16
      %1 = cast %0 : f32
      %2 = reduce.welford[c, p] %1 : f32
      %3 = pick.0 %2 : f32
      %4 = pick.1 %2 : f32
      %5 = sub %1 %3 : f32
      %6 = div %5 %4 : f32
      %7 = load w[{channels}*g+c] : bf16
      %8 = cast %7 : f32
      %9 = mul %6 %8 : f32
      %10 = cast %9 : bf16
      store m[n, g] %3
      store y[n, {channels}*g+c, p] %10""",
      x=("bf16", *shape), w=("bf16", groups * channels), m=("f32", images, groups),
      y=("bf16", *shape))  # fmt: skip


def channel_sums(images: int, groups: int, channels: int, pixels: int, dtype="bf16") -> Case:
    """Of each channel over all images, less the mean of its group in each."""
    shape = images, groups * channels, pixels
    return case(f"channel_sums_{pixels}", f"n:{images}, g:{groups}, c:{channels}, p:{pixels}", f"""
      %0 = load x[n, {channels}*g+c, p] : {dtype}
      %1 = cast %0 : f32
      %2 = load m[n, g] : f32
      %3 = sub %1 %2 : f32
      %4 = reduce.sum[n, p] %3 : f32
      store y[g, c] %4""",
      x=(dtype, *shape), m=("f32", images, groups), y=("f32", groups, channels))  # fmt: skip


def enlarged(images: int, channels: int, pixels: int) -> Case:
    """Each pixel twice, or its mirror image, at computed positions; channels first to last."""
    return case("enlarged", f"n:{images}, p:{2 * pixels}, c:{channels}", f"""
      %0 = index p : i64
      %1 = const 2 : i64
      %2 = floor_div %0 %1 : i64
      %3 = load x[n, c, %2] : bf16
      %4 = const {pixels - 1} : i64
      %5 = sub %4 %2 : i64
      %6 = load x[n, c, %5] : bf16
      %7 = maximum %3 %6 : bf16
      store y[n, p, c] %7""",
      x=("bf16", images, channels, pixels), y=("bf16", images, 2 * pixels, channels))  # fmt: skip
