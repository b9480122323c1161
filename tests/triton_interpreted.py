"""Kernels on the CPU, by Triton's interpreter (TRITON_INTERPRET=1): one line for each result.

Functions of libdevice have no meaning there, so those that Triton knows under another name are
renamed. float32 becomes bfloat16 by truncation there, so a function that rounds takes its place.
"""

from __future__ import annotations

import re
from dataclasses import replace
from types import SimpleNamespace

import torch

import quick_interpreter  # noqa: F401
import triton_cases as cases
from torchweld.codegen.source import KernelSource
from torchweld.runtime.copies import copy_source
from torchweld.runtime.triton_compile import jit_function
from triton_cases import Case, expected, looped, reduction, tensors
from triton_run import bundle_of, launches, prepare

_RENAMED = re.compile(r"libdevice\.(exp|exp2|log|log2|sin|cos|div_rn|sqrt_rn|rsqrt)\(")
_NARROWED = re.compile(r"= (.+)\.to\(tl\.bfloat16\)$", re.MULTILINE)
_NEAREST = """


@triton.jit
def _nearest(x):
    bits = x.to(tl.uint32, bitcast=True)
    rounded = bits + 0x7FFF + ((bits >> 16) & 1)
    bits = tl.where(x != x, bits, rounded)
    return (bits >> 16).to(tl.uint16).to(tl.bfloat16, bitcast=True)


@triton.jit
def _copysign(x, y):
    return tl.where(y < 0, -tl.abs(x), tl.abs(x))


@triton.jit
def _product(x, y):
    return x * y


@triton.jit
def _log1p(x):
    return tl.log(1 + x) - ((1 + x) - 1 - x) / (1 + x)


@triton.jit
def _fused(x, y, z):
    return (x.to(tl.float64) * y.to(tl.float64) + z.to(tl.float64)).to(x.dtype)


@triton.jit
def _inverse(x):
    return tl.div_rn(tl.full((), 1, x.dtype), x)


@triton.jit"""
FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)
_MASKED = torch.zeros(150)
_MASKED[:70] = float("-inf")
_ALL_MASKED = torch.full((150,), float("-inf"))
TIES = {"fill": {"x": cases.equal_numbers(101)}}


ALL = [
    *cases.POINTWISE,
    cases.flat(cases.gelu_mul(7, 101), 64),
    cases.tiled(cases.window(3, 101), 16),
    *(cases.tiled(cases.row_scaled(7, c), 16) for c in (101, 104, 127, 33)),
    cases.softmax(5, 70),
    cases.row_divided(67), cases.signed_zeros("f32"),
    *(looped(cases.many_weights(37, 70, n), 32, block_rows=16) for n in (3, 15)),
    looped(cases.shared_gathers(5, 300, 40), 32, 3),
    looped(reduction("sum", 70, 130), 32, block_rows=32),
    looped(cases.softmax(70, 130), 32, block_rows=32),
    *(how(cases.far(5, 101, *far), 16) for far in cases.FAR.items()
      for how in (lambda c, _: c, looped)),
    cases.add_layer_norm(7, 96),
    cases.layer_norm_backward(13, 40),
    cases.cross_entropy(6, 300),
    looped(cases.cross_entropy(6, 333), 32, block_rows=1),
    looped(cases.cross_entropy_backward(5, 101), 16, block_rows=1),
    looped(cases.cross_entropy_backward(5, 127), 16, block_rows=1),
    looped(cases.softmax("s0", "s1", sizes={"s0": 3, "s1": 77}), 16, block_rows=1),
    looped(cases.softmax("s0", "s1", sizes={"s0": 3, "s1": 13}), 16, block_rows=1),
    cases.guarded_sum(5, 70),
    looped(cases.guarded_sum(5, 700), 32, 3),
    looped(cases.scaled_sum(5, 700), 32, 3),
    cases.checked_embedding(13, 40),
    cases.checked_embedding(5, 40, first=0),
    looped(cases.doubled_and_summed(70, 40), 8, 3, 16),
    cases.cumulative("sum", 3, 100),
    looped(cases.cumulative("max", 3, 100), 32),
    looped(cases.cumulative("sum", 3, 96), 32),
    cases.cumulative("sum", 3, 100, backwards=True),
    looped(cases.cumulative("sum", 3, 101, backwards=True), 16, block_rows=1),
    *(cases.cumulative("logaddexp", 4, 101, b, **TIES) for b in (False, True)),
    *(looped(cases.cumulative("logaddexp", 4, 101, b, **TIES), 16) for b in (False, True)),
    looped(cases.log_sums(24, 101), 16, block_rows=8),
    looped(cases.log_sums(24, 101, "bf16"), 16, block_rows=8),
    *(cases.apart(cases.middle_scan(m, 3, 37, 13), *how) for m in ("sum", "logaddexp")
      for how in (("persistent", 8, 64), ("looped", 4, 16))),
    *(cases.in_order(5, n, kind, back) for n, kind in ((13, "i64"), (64, "i32"), (101, "i32"))
      for back in (False, True)),
    cases.loss_of_pixels(2, 5, 33),
    cases.stored_steps(3, 13, 6),
    looped(cases.stored_steps(3, 13, 6), 8),
    *(cases.running_extreme(m, 4, 101, **TIES) for m in ("max", "min")),
    looped(cases.running_extreme("max", 4, 101, **TIES), 16),
    *(looped(cases.group_norm(2, 3, 2, p), 32, block_rows=1) for p in (64, 40)),
    *(looped(cases.channel_sums(3, 2, 2, p), 32, 2, block_rows=1) for p in (64, 40)),
    cases.enlarged(2, 20, 24),
    *(cases.inverse(text, 101) for text in cases.INVERSES.values()),
    *(cases.inverse(cases.power(p), 101) for p in cases.POWERS),
    looped(cases.softmax(3, 150), 32),
    looped(cases.softmax(3, 150, fill={"m": _MASKED}), 32),
    looped(cases.softmax(3, 150, fill={"m": _ALL_MASKED}), 32),
    looped(cases.add_layer_norm(3, 100), 32),
    looped(cases.softmax("s0", "s1", sizes={"s0": 3, "s1": 70}), 32),
    looped(cases.softmax("s0", 64, sizes={"s0": 3}), 32),
    cases.layer_norm_backward("s0", 40, sizes={"s0": 13}),
    *(cases.float8(d, cases.float8_bits(100)) for d in ("f8e4m3", "f8e5m2")),
    *(reduction(m, 5, 70) for m in cases.MONOIDS),
    *(looped(reduction(m, 5, 150), 32) for m in cases.MONOIDS),
    *(looped(reduction(m, 3, 150), 16, 4) for m in cases.MONOIDS),
    *(looped(reduction(m, 100, 12, dim=0), 8, 5, 8) for m in ("sum", "argmin", "welford")),
    *(looped(reduction(m, 4, 101, fill={"x": cases.equal_numbers(101)}), 16, splits, rows)
      for m in ("argmax", "argmin") for splits, rows in ((1, 2), (1, 1), (3, 1))),
    *(cases.prepared(c) for m in ("argmax", "argmin") for c in cases.places(m)),
    *(cases.prepared(cases.middle(m, 3, n, j)) for m in ("sum", "argmax", "welford")
      for n, j in ((17, 64), (31, 33))),
    *(cases.apart(cases.middle(m, 3, 37, 13), *how) for m in cases.MONOIDS
      for how in (("persistent", 8, 64), ("looped", 4, 16), ("looped", 8, 8, 3))),
    *(cases.apart(cases.scaled_middle(2, 3, 19, 7), *how)
      for how in (("persistent", 8, 32), ("looped", 4, 8), ("looped", 2, 8))),
    cases.middle("sum", 3, 24, 333),
    cases.middle("max", 2, 300, 77),
    looped(cases.offset_moments(5, 300), 32, 1, 1),
    *(cases.moments_of_equal_numbers(n) for n in (7, 100, 1000)),
    *(looped(cases.moments_of_equal_numbers(100), 32, splits, 1) for splits in (1, 3)),
    *(cases.scan_of_equal_rows(m, 9, 7) for m in ("sum", "logaddexp")),
    looped(cases.scan_of_equal_rows("sum", 9, 70), 16, block_rows=8),
    *(c for m in ("sum", "prod", "max") for n in (96, 101)
      for c in cases.stretches(cases.cumulative(m, 3, n, backwards=n == 101), 16)),
    *(c for kind, n in (("f32", 101), ("i64", 96))
      for c in cases.stretches(cases.scan_down("sum", 9, n, kind), 16)),
    *(looped(cases.exponentials(3, 150, {"m": m}, keeps), 32, splits)
      for m in (_MASKED, _ALL_MASKED, -_MASKED) for keeps in (False, True) for splits in (1, 2)),
]


def interpret(case: Case) -> dict[str, torch.Tensor]:
    made = tensors(case)
    bundle = bundle_of(case)
    prepare(case, bundle, made)
    launches(case, bundle, made, start)
    return {n: made[n] for n in case.comp.writes}


def start(source: KernelSource, grid, arguments) -> None:
    text = renamed(_with_known_loops(source, arguments))
    bytes_of_float8 = (
        a.view(torch.uint8) if getattr(a, "dtype", None) in FLOAT8 else a for a in arguments
    )
    jit_function(replace(source, text=text))[grid](*bytes_of_float8)


def renamed(text: str) -> str:
    """What libdevice does by what Triton itself does, where it can; bfloat16 rounded to nearest;
    products of float32 whole."""
    text = re.sub('"(bf16x6|tf32x3)"', '"ieee"', text).replace("_converts_float8():", "False:")
    text = _RENAMED.sub(r"tl.\1(", text)
    own = {
        "copysign": "_copysign", "mul_rn": "_product", "rcp_rn": "_inverse", "log1p": "_log1p",
        "fma_rn": "_fused",
    }  # fmt: skip
    for name, here in own.items():
        text = text.replace(f"libdevice.{name}(", f"{here}(")
    return _NARROWED.sub(r"= _nearest(\1)", text).replace("\n\n\n@triton.jit", _NEAREST, 1)


def _with_known_loops(source: KernelSource, arguments) -> str:
    """Loop bounds as numbers: the interpreter's `range` fails on arguments with NumPy 2.4."""
    values = dict(zip(jit_function(source).arg_names, arguments))
    text = re.sub(r"tl\.range\((.*), num_stages=\d\)", r"range(\1)", source.text)
    known = {"tl": SimpleNamespace(cdiv=lambda a, b: -(-a // b), maximum=max), **values}

    def bounds(found: re.Match) -> str:
        return f"range({', '.join(map(str, eval(f'({found[1]},)', known)))}):"

    return re.sub(r"(?<!\w)range\((.*)\):", bounds, text)


def agree(got: torch.Tensor, eager: torch.Tensor) -> bool:
    if got.dtype in FLOAT8:
        got, eager = got.view(torch.uint8), eager.view(torch.uint8)
    if not got.dtype.is_floating_point:
        return torch.equal(got, eager)
    close = 2.0**-7 if got.dtype == torch.bfloat16 else 2e-5
    return torch.allclose(got.double(), eager.double(), rtol=close, atol=close, equal_nan=True)


def copies_agree(sizes: tuple[int, ...], vectors: bool) -> bool:
    """Whether a copy of tensors of so many bytes copies them, and nothing behind them."""
    source, count = copy_source(len(sizes), vectors), len(sizes)
    given = [torch.randint(-100, 100, (n + 40,), dtype=torch.int8) for n in sizes]
    taken = [torch.full_like(t, 111) for t in given]
    grid = (max(sizes) // 4096 + 1, count)
    flat = [t for pair in zip(taken, given) for t in pair]
    jit_function(source)[grid](*flat, *sizes, **dict(source.constants))
    return all(
        torch.equal(a[:n], b[:n]) and bool((b[n:] == 111).all())
        for a, b, n in zip(given, taken, sizes)
    )


def main() -> None:
    for sizes, vectors in (((12291, 36, 16, 7, 0), False), ((4096, 16, 8224), True)):
        print("agrees" if copies_agree(sizes, vectors) else "DIFFERS", "copies of", *sizes)
    for case in ALL:
        got, eager = interpret(case), expected(case, tensors(case), exact=False)
        good = all(agree(got[n], eager[n]) for n in got)
        print("agrees" if good else "DIFFERS", case.name, flush=True)


if __name__ == "__main__":
    main()
