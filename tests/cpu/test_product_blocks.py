"""The loops of products for vectors and caches of several sizes: sums have the same bits however
many threads and blocks they are made in."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch

import cpp_runner
from torchweld.core import dtypes
from torchweld.ir import size
from torchweld.ir.nodes import Buffer
from torchweld.ir.parser import parse_comp
from torchweld.ir.size import evaluate
from torchweld.targets.find import target_of
from torchweld.templates import registry
from torchweld.templates.gemm.cpu import schedule

TEXT = """
comp product [m:M, n:N, k:K] {
  %0 = load x[m, k] exact : f32
  %1 = load w[n, k] exact : f32
  %2 = mul %0 %1 : f32
  %3 = reduce.sum[k] %2 : f32
  %4 = load b[n] : f32
  %5 = add %3 %4 : f32
  store y[m, n] %5
}
"""
SHAPES = {"x": "MK", "w": "NK", "y": "MN", "b": "N"}
# Rows, columns and terms: parts of vectors, of panels and of blocks; more than a stretch of terms.
SIZES = (
    (1, 1, 1), (9, 49, 193), (130, 100, 385), (65, 433, 97), (300, 1000, 50), (40, 401, 3201),
    (1030, 33, 20),
)  # fmt: skip
GAP = 3  # elements between rows
BUILDS = {
    "native": ((), None),
    "small cache": ((), 1 << 18),
    "large cache": ((), 1 << 26),
    "avx2": (("-march=haswell",), None),
    "sse": (("-march=x86-64",), None),
}
MADE = (("native", 1), ("native", 2), ("native", 3), ("small cache", 2), ("large cache", 4))


def strides(axes: str, turned: bool) -> tuple:
    """Of rows that are GAP elements apart, or columns that are."""
    if len(axes) == 1:
        return (1,)
    along = size.symbol(axes[0 if turned else 1]) + GAP
    return (1, along) if turned else (along, 1)


def kernel(turned: str, cache: int | None):
    """The bundle for any sizes; those of `turned` lie in memory column by column."""
    buffers = {
        n: Buffer(n, tuple(map(size.symbol, a)), dtypes.f32, strides(a, n in turned))
        for n, a in SHAPES.items()
    }
    bundle = registry.bundle_of(parse_comp(TEXT), buffers, target_of("cpu"))
    (source,) = bundle.sources
    text = source.text
    if cache:
        text = re.sub(r"(#define TW_CACHE) \d+", rf"\1 {cache}", text)
        assert f"TW_CACHE {cache}\n" in text
    return replace(source, text=text), bundle.scratch


def inputs(turned: str, sizes: dict[str, int]) -> dict[str, torch.Tensor]:
    """Tensors with NaN in the gaps."""
    torch.manual_seed(0)
    made = {}
    for name, axes in SHAPES.items():
        shape = [sizes[a] for a in axes]
        if name in turned:
            shape.reverse()
        if len(shape) == 2:
            shape[1] += GAP
        tensor = torch.full(shape, torch.nan)
        view = tensor[:, : shape[1] - GAP] if len(shape) == 2 else tensor
        made[name] = (view.t() if name in turned else view).normal_()
    made["w"] /= sizes["K"] ** 0.5
    return made


def run(turned: str, sizes: dict[str, int], build: str, threads: int) -> torch.Tensor:
    flags, cache = BUILDS[build]
    source, scratch = kernel(turned, cache)
    tensors = inputs(turned, sizes)
    tensors["y"].fill_(torch.nan)
    for buffer in scratch:
        tensors[buffer.name] = torch.full([evaluate(buffer.shape[0], sizes)], torch.nan)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        cpp_runner.call(source, tensors, sizes, flags)
    finally:
        torch.set_num_threads(before)
    return tensors["y"]


@pytest.mark.parametrize("turned", ["", "xw", "w", "y"])
@pytest.mark.parametrize("numbers", SIZES, ids=str)
def test_bits_do_not_depend_on_threads_and_caches(numbers, turned):
    sizes = dict(zip("MNK", numbers))
    tensors = inputs(turned, sizes)
    exact = tensors["x"].double() @ tensors["w"].double().t() + tensors["b"].double()
    first = run(turned, sizes, "native", 1)
    torch.testing.assert_close(first.double(), exact, rtol=2e-6, atol=2e-6)
    for build, threads in MADE:
        assert torch.equal(run(turned, sizes, build, threads), first), (build, threads)


@pytest.mark.parametrize("build", ["avx2", "sse"])
@pytest.mark.parametrize("turned", ["", "xw"])
def test_narrower_vectors(build, turned):
    for numbers in SIZES:
        sizes = dict(zip("MNK", numbers))
        tensors = inputs(turned, sizes)
        exact = tensors["x"].double() @ tensors["w"].double().t() + tensors["b"].double()
        one, three = (run(turned, sizes, build, threads) for threads in (1, 3))
        torch.testing.assert_close(one.double(), exact, rtol=2e-6, atol=2e-6)
        assert torch.equal(one, three)


BATCH = """
comp product [b:B, m:M, n:N, k:K] {
  %0 = load x[b, m, k] exact : f32
  %1 = load w[b, n, k] exact : f32
  %2 = mul %0 %1 : f32
  %3 = reduce.sum[k] %2 : f32
  store y[b, m, n] %3
}
"""


@pytest.mark.parametrize("numbers", [(17, 50, 33), (9, 49, 3100), (3, 70, 40)], ids=str)
def test_products_of_a_batch_by_one_thread_each(numbers, monkeypatch):
    """Five products: each thread takes as many as all others do, and all together the rest. Four
    threads have memory for three, and share all of them."""
    monkeypatch.setattr(schedule, "_threads", lambda: 3)
    monkeypatch.setattr(schedule, "core_cache_bytes", lambda: 1 << 24)
    m, n, k = numbers
    shapes = {"x": (5, m, k), "w": (5, n, k), "y": (5, m, n)}
    tensors = {a: torch.randn(shape) for a, shape in shapes.items()}
    tensors["w"] /= k**0.5
    buffers = {
        a: Buffer(a, shape, dtypes.f32, tensors[a].stride()) for a, shape in shapes.items()
    }
    text = BATCH
    for axis, extent in zip("BMNK", (5, *numbers)):
        text = text.replace(f":{axis}", f":{extent}")
    bundle = registry.bundle_of(parse_comp(text), buffers, target_of("cpu"))
    (source,), results = bundle.sources, []
    before = torch.get_num_threads()
    for threads in (1, 2, 3, 4):
        scratch = {b.name: torch.full(b.shape, torch.nan) for b in bundle.scratch}
        tensors["y"].fill_(torch.nan)
        try:
            torch.set_num_threads(threads)
            cpp_runner.call(source, tensors | scratch, {})
        finally:
            torch.set_num_threads(before)
        results.append(tensors["y"].clone())
    exact = tensors["x"].double() @ tensors["w"].double().mT
    torch.testing.assert_close(results[0].double(), exact, rtol=2e-6, atol=2e-6)
    assert all(torch.equal(r, results[0]) for r in results)
