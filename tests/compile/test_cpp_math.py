"""fastmath.h: the largest error of each float function over wide samples, in units of the last
place of the float64 result, and its values at the edges."""

from __future__ import annotations

import ctypes
import math
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch

import torchweld
from torchweld.codegen.cpp.flags import COMPILER, FLAGS
from torchweld.codegen.cpp.headers import common_header, with_headers
from torchweld.templates.conv.cpu.generate import header


def log1p_exp(x: torch.Tensor) -> torch.Tensor:
    """Infinite where exp overflows in float32."""
    overflows = x.float().exp().isinf()
    return torch.where(overflows, torch.inf, x.clamp(min=0) + torch.log1p(torch.exp(-x.abs())))


# name -> (units in the last place, torch function)
UNARY = {
    "exp": (1.1, torch.exp), "log": (0.9, torch.log), "erf": (1.3, torch.erf),
    "tanh": (2.5, torch.tanh),
    "sigmoid": (2.6, torch.sigmoid), "rsqrt": (1.6, torch.rsqrt),
    "exp2": (1.1, torch.exp2), "expm1": (1.5, torch.expm1), "log2": (0.51, torch.log2),
    "log10": (0.51, torch.log10), "log1p": (1.6, torch.log1p),
    "sin": (1.5, torch.sin), "cos": (1.5, torch.cos),
    "tan": (0.51, torch.tan), "asin": (0.51, torch.asin), "acos": (0.51, torch.acos),
    "atan": (0.51, torch.atan),
    "sinh": (0.51, torch.sinh), "cosh": (0.51, torch.cosh), "asinh": (0.51, torch.asinh),
    "acosh": (0.51, torch.acosh), "atanh": (0.51, torch.atanh),
    "erfc": (3, torch.erfc), "erfinv": (0.51, torch.erfinv), "lgamma": (7, torch.lgamma),
    "1_plus_tanh": (2.6, lambda x: 2 * torch.sigmoid(2 * x)),
    "log1p_exp": (2.5, log1p_exp),
}  # fmt: skip
# name -> (absolute error, torch function)
ABSOLUTE = {"1_plus_erf": (4e-7, lambda x: torch.special.erfc(-x))}
# Below, results are denormal, and zero here; 1 / (1 + exp(-x)) is zero in eager too.
FLUSHED = {"sigmoid": -87, "1_plus_tanh": -43.5, "log1p_exp": -87}
BINARY = {
    "pow": (0.51, torch.pow), "atan2": (0.51, torch.atan2), "hypot": (0.51, torch.hypot),
    "nextafter": (0, np.nextafter),
    # numpy's: torch's vectorised fmod gives NaN for large quotients, its fmax keeps signalling NaN
    "remainder": (0, np.remainder), "fmod": (0, np.fmod),
    "fmax": (0, np.fmax), "fmin": (0, np.fmin),
    "floor_div": (0, torch.floor_divide), "maximum": (0, torch.maximum),
    "minimum": (0, torch.minimum),
}  # fmt: skip
EDGES = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    np.inf,
    -np.inf,
    np.nan,
    1e-45,
    -1e-45,
    1.17e-38,
    3.4e38,
    -3.4e38,
    0.5,
    2.0,
    -2.0,
    3.0,
    88.7,
    89.0,
    -87.4,
    -103.9,
    -104.5,
    1e-8,
    -1e-8,
    0.9999999,
    -0.9999999,
]


def test_headers_of_kernels_include_integers_alone():
    """C++'s own headers take gcc longer than a kernel does."""
    package = Path(torchweld.__file__).parent
    headers = [*package.glob("codegen/**/*.h"), *package.glob("templates/**/*.h")]
    lines = [line for h in headers for line in h.read_text().splitlines()]
    found = {line for line in lines if line.startswith("#include")}
    assert found == {"#include <stdint.h>"}


@pytest.mark.parametrize("name", ["conv/cpu/convolution", "conv/cpu/depthwise", "pooling/pooling"])
def test_headers_declare_what_they_use(name, tmp_path):
    source = tmp_path / "header.cpp"
    loops = Path(torchweld.__file__).parent / "templates" / f"{name}.h"
    source.write_text(common_header() + header(loops))
    command = [COMPILER, *FLAGS, "-fsyntax-only", str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """void test_NAME(long n, const float* x, const float* y, float* out) for every function."""
    loop = (
        'extern "C" void test_{0}(long n, const float* x, const float* y, float* out) {{\n'
        "#pragma omp simd\n"
        "for (long i = 0; i < n; ++i) out[i] = tw_{0}({1}); }}\n"
    )
    text = with_headers(
        "".join(loop.format(n, "x[i]") for n in UNARY | ABSOLUTE)
        + "".join(loop.format(n, "x[i], y[i]") for n in BINARY)
    )
    base = tmp_path_factory.mktemp("math") / "math"
    base.with_suffix(".cpp").write_text(text)
    command = [
        COMPILER,
        *FLAGS,
        "-Wall",
        str(base.with_suffix(".cpp")),
        "-o",
        str(base.with_suffix(".so")),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return ctypes.CDLL(str(base.with_suffix(".so")))


def samples(seed: int) -> np.ndarray:
    """Floats of every magnitude (random bits), ordinary ones, and edges."""
    rng = np.random.default_rng(seed)
    bits = rng.integers(0, 2**32, 200_000, dtype=np.uint32).view(np.float32)
    ordinary = [rng.normal(size=100_000) * s for s in (0.01, 1, 10, 1000)] + [
        rng.uniform(-1, 1, 100_000)
    ]
    return np.concatenate([bits, *(o.astype(np.float32) for o in ordinary)])


def apply(library, name, x, y):
    out, address = np.empty_like(x), lambda a: a.ctypes.data_as(ctypes.c_void_p)
    getattr(library, f"test_{name}")(ctypes.c_long(x.size), address(x), address(y), address(out))
    return torch.from_numpy(out)


def worst_ulp(found: torch.Tensor, exact: torch.Tensor) -> float:
    """Largest distance in units in the last place of the rounded result; inf where kinds differ."""
    rounded = exact.float()
    if not torch.equal(found.isnan(), rounded.isnan()):
        return float("inf")
    inside = rounded.isfinite() & found.isfinite()
    other = ~inside & ~found.isnan() & (found != rounded)
    overflow = other & (exact.abs() < 3.5e38) & (exact.abs() > 3.3e38)  # either side of the limit
    if (other & ~overflow).any():
        return float("inf")
    unit = torch.from_numpy(
        np.spacing(np.maximum(rounded.abs().numpy(), np.float32(1.2e-38)))
    ).double()
    return ((found.double() - exact).abs() / unit)[inside].max().item()


@pytest.mark.parametrize("name", UNARY)
def test_unary_error(library, name):
    limit, exact = UNARY[name]
    x = samples(1)
    if name in ("sin", "cos", "tan"):
        x = x[~(np.abs(x) > 2.0**45)]
    if name in FLUSHED:
        x = x[~(x < FLUSHED[name])]
    found = apply(library, name, x, x)
    assert worst_ulp(found, exact(torch.from_numpy(x).double())) <= limit


@pytest.mark.parametrize("name", ["tanh", "sigmoid"])
def test_what_is_near_one_is_rounded_once(library, name):
    """Differences of such numbers are a few of their last places."""
    x = np.linspace(3, 20, 100_001, dtype=np.float32)
    exact = UNARY[name][1](torch.from_numpy(x).double())
    found = apply(library, name, x, x)
    assert (found.double() - exact).abs().max() < 0.61 * 2.0**-24
    assert (found != exact.float()).float().mean() < 0.02


@pytest.mark.parametrize("name", ABSOLUTE)
def test_absolute_error(library, name):
    limit, exact = ABSOLUTE[name]
    x = np.concatenate([samples(1), np.array(EDGES, dtype=np.float32)])
    found, expected = apply(library, name, x, x), exact(torch.from_numpy(x).double())
    assert torch.equal(found.isnan(), expected.isnan())
    assert (found.double() - expected)[~expected.isnan()].abs().max() <= limit


@pytest.mark.parametrize("name", UNARY)
def test_unary_edges(library, name):
    x = np.array(EDGES, dtype=np.float32)
    if name in ("sin", "cos", "tan"):
        x[np.isfinite(x) & (np.abs(x) > 2.0**45)] = 0
    if name == "log1p_exp":
        x[np.isfinite(x) & (x < FLUSHED[name])] = -np.inf
    found, exact = apply(library, name, x, x), UNARY[name][1](torch.from_numpy(x).double())
    assert worst_ulp(found, exact) <= max(UNARY[name][0], 1)
    zero = (found == 0) & (exact == 0)
    assert torch.equal(found[zero].signbit(), exact[zero].signbit())


@pytest.mark.parametrize("name", BINARY)
def test_binary_error(library, name):
    limit, exact = BINARY[name]
    edges = np.array(EDGES, dtype=np.float32)
    x = np.concatenate([samples(2), np.repeat(edges, len(edges))])
    y = np.concatenate([samples(3), np.tile(edges, len(edges))])
    found, args = apply(library, name, x, y), (torch.from_numpy(x), torch.from_numpy(y))
    if limit:
        args = tuple(a.double() for a in args)
    with np.errstate(all="ignore"):
        expected = torch.as_tensor(exact(*args))
    assert worst_ulp(found, expected.double()) <= limit


# name -> (units in the last place, function of long doubles)
DOUBLE = {
    "exp": (1.1, np.exp), "expm1": (2.2, np.expm1), "log": (1.0, np.log), "log1p": (1.6, np.log1p),
    "tanh": (2.5, np.tanh), "sigmoid": (2.6, lambda x: 1 / (1 + np.exp(-x))),
    "erf": (2.0, lambda x: np.vectorize(math.erf)(x.astype(np.float64)).astype(np.longdouble)),
}  # fmt: skip


@pytest.fixture(scope="module")
def doubles(tmp_path_factory):
    loop = (
        'extern "C" void test_{0}(long n, const double* x, double* out) {{\n'
        "#pragma omp simd\n"
        "for (long i = 0; i < n; ++i) out[i] = tw_{0}(x[i]); }}\n"
    )
    base = tmp_path_factory.mktemp("math") / "doubles"
    base.with_suffix(".cpp").write_text(with_headers("".join(loop.format(n) for n in DOUBLE)))
    command = [COMPILER, str(base.with_suffix(".cpp")), *FLAGS, "-fopt-info-vec"]
    done = subprocess.run(
        [*command, "-o", str(base.with_suffix(".so"))], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    vectorized = {line.split(":")[1] for line in done.stderr.splitlines() if "loop vec" in line}
    assert len(vectorized) == len(DOUBLE)
    return ctypes.CDLL(str(base.with_suffix(".so")))


@pytest.mark.parametrize("name", DOUBLE)
def test_functions_of_doubles(doubles, name):
    most, reference = DOUBLE[name]
    rng = np.random.default_rng(0)
    spread = np.exp(rng.uniform(-700, 700, 20000))
    near = rng.uniform(-2, 2, 40000)
    x = np.concatenate([near, rng.uniform(-745, 709.7, 40000), 10 * near, spread, -spread, EDGES])
    if name == "sigmoid":
        x = x[~(x < -700)]  # as for floats
    found = np.empty_like(x)
    pointers = [v.ctypes.data_as(ctypes.c_void_p) for v in (x, found)]
    getattr(doubles, f"test_{name}")(ctypes.c_long(x.size), *pointers)
    with np.errstate(all="ignore"):
        exact = reference(x.astype(np.longdouble))
        rounded = exact.astype(np.float64)
        error = np.abs(found.astype(np.longdouble) - exact) / np.spacing(np.abs(rounded))
    finite = np.isfinite(rounded)
    assert error[finite].max() <= most
    np.testing.assert_array_equal(found[~finite], rounded[~finite])
    assert np.array_equal(np.signbit(found[rounded == 0]), np.signbit(rounded[rounded == 0]))


ROUNDS = """
extern "C" uint64_t differing() {
  uint64_t found = 0;
  for (uint64_t i = 0; i < 1ull << 32; i += 1) {
    const float f = tw_from_bits((uint32_t)i), got = tw_round_f16(f);
    const float by_steps = tw_from_f16(tw_to_f16(f));
    found += (tw_bits(got) != tw_bits(by_steps)) & !((got != got) & (by_steps != by_steps));
  }
  return found;
}
"""


def test_rounding_to_float16_of_every_float(tmp_path):
    """In float32, as the conversion there and back: denormals, ties, overflow and signs, too."""
    source, shared = tmp_path / "rounds.cpp", tmp_path / "rounds.so"
    source.write_text(with_headers(ROUNDS))
    subprocess.run([COMPILER, str(source), *FLAGS, "-o", str(shared)], check=True)
    differing = ctypes.CDLL(str(shared)).differing
    differing.restype = ctypes.c_uint64
    assert differing() == 0
