"""gcc vectorises the loops of generated kernels: what its optimisation report says of each."""

from __future__ import annotations

import subprocess

import pytest
import torch

from torchweld.codegen.cpp.flags import COMPILER, FLAGS
from torchweld.core import dtypes as d
from torchweld.ir.nodes import Buffer
from torchweld.ir.parser import parse_comp
from torchweld.ir.scalar import TABLE
from torchweld.templates.pointwise_reduce.cpu.generate import generate

OF_GPUS = ("erfc", "erfinv", "lgamma", "nextafter")  # calls of ATen's on a CPU
FLOAT_OPS = [
    r for r in TABLE.values()
    if "f" in r.kinds and r.result not in ("where", "free") and r.name not in OF_GPUS
]  # fmt: skip


def report(text: str, shapes: dict[str, tuple], tmp_path, flags=()) -> str:
    """What gcc says of the kernel, whose source is left in kernel.cpp."""
    buffers = {
        n: Buffer(n, s, t, torch.empty(s, device="meta").stride()) for n, (s, t) in shapes.items()
    }
    base = tmp_path / "kernel"
    base.with_suffix(".cpp").write_text(generate(parse_comp(text), buffers).sources[0].text)
    command = [COMPILER, "-S", str(base.with_suffix(".cpp")), *FLAGS, *flags, "-o", str(base)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stderr


def missed(text: str, shapes: dict[str, tuple], tmp_path, flags=()) -> list[str]:
    """Lines of gcc's report about simd loops that it did not vectorise."""
    said = report(text, shapes, tmp_path, (*flags, "-fopt-info-vec")).splitlines()
    found = {int(m.split(":")[1]) for m in said if "loop vectorized" in m}
    lines = (tmp_path / "kernel.cpp").read_text().splitlines()
    loops = [simd_loop(lines, k) for k, text in enumerate(lines) if "#pragma omp simd" in text]
    unseen = [lines[loop.start] for loop in loops if not found.intersection(loop)]
    start = next(k for k, text in enumerate(lines) if "static void part" in text)
    inlined = [line for line in found if line <= start]  # a loop reported at what it inlines
    return unseen[len(inlined) :]


def simd_loop(lines: list[str], pragma: int) -> range:
    """Line numbers (from one) of the loop under the pragma at index `pragma`."""
    indent = lines[pragma].index("#")
    end = next(k for k in range(pragma + 2, len(lines)) if lines[k].startswith(" " * indent + "}"))
    return range(pragma + 1, end + 2)


@pytest.mark.parametrize("row", FLOAT_OPS, ids=lambda r: r.name)
def test_float_operations(row, tmp_path):
    args = " ".join(f"%{k}" for k in range(row.arity))
    loads = "\n".join(f"  %{k} = load x{k}[i] : f32" for k in range(row.arity))
    result = d.b1 if row.result == "bool" else d.f32
    text = f"""
comp one [i:4096] {{
{loads}
  %{row.arity} = {row.name} {args} : {result}
  store y[i] %{row.arity}
}}
"""
    shapes = {f"x{k}": ((4096,), d.f32) for k in range(row.arity)} | {"y": ((4096,), result)}
    assert missed(text, shapes, tmp_path) == []


CASES = {
    "8-bit floats, both ways, and their bits": (
        """
comp eight [i:4096] {
  %0 = load x[i] : f8e4m3
  %1 = cast %0 : f32
  %2 = mul %1 %1 : f32
  %3 = cast.round %2 : f8e5m2
  %4 = f8e5m2_bits %3 : u8
  store y[i] %3
  store z[i] %4
}
""",
        {"x": ((4096,), d.f8e4m3), "y": ((4096,), d.f8e5m2), "z": ((4096,), d.u8)},
    ),
    "bf16 through a row": (
        """
comp norm [i:100, j:512] {
  %0 = load x[i, j] : bf16
  %1 = cast %0 : f32
  %2 = reduce.welford[j] %1 : f32
  %3 = pick.0 %2 : f32
  %4 = sub %1 %3 : f32
  %5 = reduce.max[j] %4 : f32
  %6 = div %4 %5 : f32
  %7 = cast %6 : bf16
  store y[i, j] %7
}
""",
        {"x": ((100, 512), d.bf16), "y": ((100, 512), d.bf16)},
    ),
    "powers of numbers that are compared with their bounds": (
        """
comp curve [i:4096] {
  %0 = load x[i] : f32
  %1 = const 0.04 : f32
  %2 = maximum %0 %1 : f32
  %3 = const 2.4 : f32
  %4 = pow %2 %3 : f32
  %5 = le %0 %1 : b1
  %6 = where %5 %0 %4 : f32
  %7 = maximum %6 %1 : f32
  %8 = pow %7 %3 : f32
  %9 = le %6 %1 : b1
  %10 = where %9 %6 %8 : f32
  store y[i] %10
}
""",
        {"x": ((4096,), d.f32), "y": ((4096,), d.f32)},
    ),
    "odd rows": (
        """
comp softmax [i:100, j:127] {
  %0 = load x[i, j] : f32
  %1 = add %0 %0 : f32
  %2 = reduce.max[j] %1 : f32
  %3 = sub %1 %2 : f32
  %4 = exp %3 : f32
  %5 = reduce.sum[j] %4 : f32
  %6 = div %4 %5 : f32
  store y[i, j] %6
}
""",
        {"x": ((100, 127), d.f32), "y": ((100, 127), d.f32)},
    ),
    "half floats": (
        """
comp half [i:4096] {
  %0 = load x[i] : f16
  %1 = cast %0 : f32
  %2 = exp %1 : f32
  %3 = cast %2 : f16
  store y[i] %3
}
""",
        {"x": ((4096,), d.f16), "y": ((4096,), d.f16)},
    ),
    "causal mask": (
        """
comp causal [i:64, j:64] {
  %0 = load x[i, j] : f32
  %1 = index i : i64
  %2 = index j : i64
  %3 = le %2 %1 : b1
  %4 = const -inf : f32
  %5 = where %3 %0 %4 : f32
  store y[i, j] %5
}
""",
        {"x": ((64, 64), d.f32), "y": ((64, 64), d.f32)},
    ),
    "boolean mask": (
        """
comp masked [i:4096] {
  %0 = load x[i] : f32
  %1 = load m[i] : b1
  %2 = cast %1 : f32
  %3 = mul %0 %2 : f32
  store y[i] %3
}
""",
        {"x": ((4096,), d.f32), "m": ((4096,), d.b1), "y": ((4096,), d.f32)},
    ),
    "dropout": (
        """
comp dropout [i:4096] {
  %0 = load seed[] : i64
  %1 = index i : i64
  %2 = philox %0 %1 : f32
  %3 = const 0.1 : f32
  %4 = ge %2 %3 : b1
  %5 = cast %4 : f32
  %6 = load x[i] : f32
  %7 = mul %6 %5 : f32
  store y[i] %7
}
""",
        {"seed": ((), d.i64), "x": ((4096,), d.f32), "y": ((4096,), d.f32)},
    ),
    "cat by guards": (
        """
comp cat [i:6, j:1024] {
  %0 = index j : i64
  %1 = const 500 : i64
  %2 = lt %0 %1 : b1
  %3 = load x[i, j] if %2 else 0.0 : f32
  %4 = logical_not %2 : b1
  %5 = load z[i, j-500] if %4 else 0.0 : f32
  %6 = where %2 %3 %5 : f32
  store y[i, j] %6
}
""",
        {"x": ((6, 500), d.f32), "z": ((6, 524), d.f32), "y": ((6, 1024), d.f32)},
    ),
    "two points beside each other": (
        """
comp shuffle [c:4, i:64, h:2, j:64, w:2] {
  %0 = load x[4*c+2*h+w, i, j] : bf16
  store y[c, 2*i+h, 2*j+w] %0
}
""",
        {"x": ((16, 64, 64), d.bf16), "y": ((4, 128, 128), d.bf16)},
    ),
    "sum over rows": (
        """
comp columns [i:1000, j:512] {
  %0 = load x[i, j] : f32
  %1 = reduce.sum[i] %0 : f32
  store y[j] %1
}
""",
        {"x": ((1000, 512), d.f32), "y": ((512,), d.f32)},
    ),
    "conditions of the lane that are worked out once": (
        """
comp wavefront [i:24, j:48] {
  %0 = const 0.0 : f32
  %1 = index j : i64
  %2 = const 1 : i64
  %3 = ge %1 %2 : b1
  %4 = index j+-1 : i64
  %5 = ge %4 %2 : b1
  %6 = bit_and %5 %3 : b1
  %7 = index j+-2 : i64
  %8 = ge %7 %2 : b1
  %9 = bit_and %8 %6 : b1
  %10 = index (-1)*j+40 : i64
  %11 = ge %10 %2 : b1
  %12 = bit_and %11 %9 : b1
  %13 = index (-1)*j+37 : i64
  %14 = ge %13 %2 : b1
  %15 = bit_and %14 %6 : b1
  %16 = load x[i, j+-1] if %3 else 0.0 : f32
  %17 = load x[i, j+-2] if %6 else 0.0 : f32
  %18 = load x[i, j+-3] if %9 else 0.0 : f32
  %19 = maximum %16 %17 : f32
  %20 = where %12 %19 %0 : f32
  %21 = maximum %20 %18 : f32
  %22 = where %15 %21 %0 : f32
  %23 = load x[i, j+-3] if %12 else 0.0 : f32
  %24 = add %22 %23 : f32
  store y[i, j] %24
}
""",
        {"x": ((24, 48), d.f32), "y": ((24, 48), d.f32)},
    ),
    "embedding": (
        """
comp embedding [i:50, j:512] {
  %0 = load at[i] : i64
  %1 = load table[%0, j] : f32
  store y[i, j] %1
}
""",
        {"at": ((50,), d.i64), "table": ((99, 512), d.f32), "y": ((50, 512), d.f32)},
    ),
}


@pytest.mark.parametrize("flags", ((), ("-march=haswell",)), ids=("native", "avx2"))
def test_no_loop_becomes_a_call(flags, tmp_path):
    """What is summed is copied to an array first: as a call, 16 bytes at a time."""
    text = """
comp total [i:100, j:1024] {
  %0 = load x[i, j] : f32
  %1 = reduce.sum[j] %0 : f32
  store y[i] %1
}
"""
    shapes = {"x": ((100, 1024), d.f32), "y": ((100,), d.f32)}
    assert "library call" not in report(text, shapes, tmp_path, (*flags, "-fopt-info-loop"))


SMOOTH = ("exp", "expm1", "log", "log1p", "erf", "tanh", "sigmoid", "sin", "cos", "sqrt")


@pytest.mark.parametrize("flags", ((), ("-march=haswell",)), ids=("native", "avx2"))
@pytest.mark.parametrize("name", SMOOTH)
def test_functions_of_functions(name, flags, tmp_path):
    """What each selects at its edges becomes no branch around the other."""
    text = f"""
comp chosen [i:4096] {{
  %0 = load x[i] : f32
  %1 = const 20.0 : f32
  %2 = gt %0 %1 : b1
  %3 = exp %0 : f32
  %4 = {name} %3 : f32
  %5 = where %2 %0 %4 : f32
  %6 = tanh %5 : f32
  %7 = const 1.0 : f32
  %8 = add %6 %7 : f32
  store y[i] %8
}}
"""
    shapes = {"x": ((4096,), d.f32), "y": ((4096,), d.f32)}
    assert missed(text, shapes, tmp_path, flags) == []


@pytest.mark.parametrize("name", CASES)
def test_loops(name, tmp_path):
    assert missed(*CASES[name], tmp_path) == []


@pytest.mark.parametrize("columns", [40, 57, 300])
def test_masks_beside_floats_leave_vectors_whole(columns, tmp_path):
    text = f"""
comp pairs [i:19, j:{columns}] {{
  %0 = load x[i, j] : f32
  %1 = load valid[i, j] : b1
  %2 = const 0.0 : f32
  %3 = exp %0 : f32
  %4 = where %1 %3 %2 : f32
  %5 = reduce.sum[j] %4 : f32
  store y[i] %5
}}
"""
    shapes = {"x": ((19, columns), d.f32), "valid": ((19, columns), d.b1), "y": ((19,), d.f32)}
    said = report(text, shapes, tmp_path, ("-fopt-info-vec",))
    assert "loop vectorized" in said and "using 8 byte vectors" not in said




PADDED = {
    "along both": """
comp padded [i:40, j:34, k:34] {
  %0 = index k : i64
  %1 = const 33 : i64
  %2 = lt %0 %1 : b1
  %3 = index j : i64
  %4 = lt %3 %1 : b1
  %5 = bit_and %2 %4 : b1
  %6 = load x[i, j, k] if %5 else 0 : f32
  %7 = sigmoid %6 : f32
  %8 = mul %6 %7 : f32
  %9 = const 0.0 : f32
  %10 = where %5 %8 %9 : f32
  store y[i, j, k] %10
}
""",
    "along rows": """
comp padded [i:40, j:33, k:34] {
  %0 = index k : i64
  %1 = const 33 : i64
  %2 = lt %0 %1 : b1
  %3 = load x[i, j, k] if %2 else 0 : f32
  %4 = sigmoid %3 : f32
  %5 = mul %3 %4 : f32
  %6 = const 0.0 : f32
  %7 = where %2 %5 %6 : f32
  store y[i, j, k] %7
}
""",
}


@pytest.mark.parametrize("name", PADDED)
def test_what_is_computed_before_a_padding(name, tmp_path):
    """Conditions are copied with what they choose, and as wide: gcc makes no vectors of loops that
    read bools, or compare 64-bit indices beside floats: silu before a padding of 2 x 48 x 33 x 33
    took 594 and 215 us, 100 so. The column of the padding alone is no loop."""
    rows = 33 if name == "along rows" else 34
    shapes = {"x": ((40, 33, 33), d.f32), "y": ((40, rows, 34), d.f32)}
    assert all("= 33;" in line for line in missed(PADDED[name], shapes, tmp_path))
