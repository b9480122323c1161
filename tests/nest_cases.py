"""Score nests in the text of the IR, that the tests of attention share."""

from __future__ import annotations

from dataclasses import replace

from torchweld.ir.nodes import Axis, Comp
from torchweld.ir.parser import parse_comp
from torchweld.ir.simplify import simplify

AXES = "[b:2, h:2, g:2, i:13, d:8, l:17, e:5]"
SCORES = """
  %0 = load q[b, h, g, i, d] : f32
  %1 = load k[b, h, l, d] : f32
  %2 = mul %0 %1 : f32
  %3 = reduce.sum[d] %2 : f32
  %4 = const 0.35 : f32
  %5 = mul %3 %4 : f32
  %6 = index l+(-1)*i : i64
  %7 = const 4 : i64
  %8 = le %6 %7 : b1
  %9 = const -inf : f32
  %10 = where %8 %5 %9 : f32
"""
FORWARD = f"""comp forward {AXES} {{ {SCORES}
  %11 = reduce.max[l] %10 : f32
  %12 = sub %10 %11 : f32
  %13 = exp %12 : f32
  %14 = reduce.sum[l] %13 : f32
  %15 = div %13 %14 : f32
  %16 = load v[b, h, l, e] : f32
  %17 = mul %15 %16 : f32
  %18 = reduce.sum[l] %17 : f32
  store y[b, h, g, i, e] %18
  store m[b, h, g, i] %11
  store t[b, h, g, i] %14
}}"""
SAVED = """
  %11 = load m[b, h, g, i] : f32
  %12 = sub %10 %11 : f32
  %13 = exp %12 : f32
  %14 = load t[b, h, g, i] : f32
  %15 = div %13 %14 : f32
  %16 = load dy[b, h, g, i, e] : f32
  %17 = load v[b, h, l, e] : f32
  %18 = mul %16 %17 : f32
  %19 = reduce.sum[e] %18 : f32
  %20 = load D[b, h, g, i] : f32
  %21 = sub %19 %20 : f32
  %22 = mul %15 %21 : f32
  %23 = const 0.0 : f32
  %24 = where %8 %22 %23 : f32
  %25 = mul %24 %4 : f32
"""
_BACKWARD_AXES = "[b:2, h:2, g:2, i:13, d:8, l:17, e:5, x:8]"
QUERIES = f"""comp queries {_BACKWARD_AXES} {{ {SCORES}{SAVED}
  %26 = load k[b, h, l, x] : f32
  %27 = mul %25 %26 : f32
  %28 = reduce.sum[l] %27 : f32
  store dq[b, h, g, i, x] %28
}}"""
KEYS = f"""comp keys [b:2, h:2, g:2, i:13, d:8, l:17, e:5, x:8, z:5] {{ {SCORES}{SAVED}
  %26 = load q[b, h, g, i, x] : f32
  %27 = mul %25 %26 : f32
  %28 = reduce.sum[g,i] %27 : f32
  %29 = load dy[b, h, g, i, z] : f32
  %30 = mul %15 %29 : f32
  %31 = reduce.sum[g,i] %30 : f32
  store dk[b, h, l, x] %28
  store dv[b, h, l, z] %31
}}"""
SIGMOID = """comp sigmoid [b:2, i:13, d:8, l:17, e:5] {
  %0 = load q[b, i, d] : f32
  %1 = load k[b, l, d] : f32
  %2 = mul %0 %1 : f32
  %3 = reduce.sum[d] %2 : f32
  %4 = sigmoid %3 : f32
  %5 = index i : i64
  %6 = index l : i64
  %7 = ge %5 %6 : b1
  %8 = const 0.0 : f32
  %9 = where %7 %4 %8 : f32
  %10 = load v[b, l, e] : f32
  %11 = mul %9 %10 : f32
  %12 = reduce.sum[l] %11 : f32
  store y[b, i, e] %12
}"""
DIFFERENTIAL = """comp differential [b:2, i:13, d:8, f:8, l:17, e:5] {
  %0 = load q[b, i, d] : f32
  %1 = load k[b, l, d] : f32
  %2 = mul %0 %1 : f32
  %3 = reduce.sum[d] %2 : f32
  %4 = reduce.max[l] %3 : f32
  %5 = sub %3 %4 : f32
  %6 = exp %5 : f32
  %7 = reduce.sum[l] %6 : f32
  %8 = div %6 %7 : f32
  %9 = load q2[b, i, f] : f32
  %10 = load k2[b, l, f] : f32
  %11 = mul %9 %10 : f32
  %12 = reduce.sum[f] %11 : f32
  %13 = reduce.max[l] %12 : f32
  %14 = sub %12 %13 : f32
  %15 = exp %14 : f32
  %16 = reduce.sum[l] %15 : f32
  %17 = div %15 %16 : f32
  %18 = load lam[] : f32
  %19 = mul %18 %17 : f32
  %20 = sub %8 %19 : f32
  %21 = load v[b, l, e] : f32
  %22 = mul %20 %21 : f32
  %23 = reduce.sum[l] %22 : f32
  store y[b, i, e] %23
}"""
SINKS = f"""comp sinks {AXES} {{ {SCORES}
  %11 = reduce.max[l] %10 : f32
  %12 = load c[h] : f32
  %13 = maximum %11 %12 : f32
  %14 = sub %10 %13 : f32
  %15 = exp %14 : f32
  %16 = reduce.sum[l] %15 : f32
  %17 = sub %12 %13 : f32
  %18 = exp %17 : f32
  %19 = add %16 %18 : f32
  %20 = div %15 %19 : f32
  %21 = load v[b, h, l, e] : f32
  %22 = mul %20 %21 : f32
  %23 = reduce.sum[l] %22 : f32
  store y[b, h, g, i, e] %23
  store m[b, h, g, i] %13
  store t[b, h, g, i] %19
}}"""
TEXTS = {
    "forward": FORWARD, "sinks": SINKS, "queries": QUERIES, "keys": KEYS, "sigmoid": SIGMOID,
    "differential": DIFFERENTIAL,
}  # fmt: skip
KEY_AXES = {"keys": ("g", "i")}  # of the others ("l",)


def nest_case(name: str, **extents: int) -> Comp:
    """The Comp by its name, simplified, with other extents where some are given."""
    comp = simplify(parse_comp(TEXTS[name]))
    axes = tuple(Axis(a.name, extents.get(a.name, a.extent)) for a in comp.axes)
    return replace(comp, axes=axes)
