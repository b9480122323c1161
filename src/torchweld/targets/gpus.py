"""NVIDIA GPUs, one record each: measured or published rates; where neither exists, a prior that
errs on the slow side."""

from __future__ import annotations

from dataclasses import replace

from torchweld.targets.products import HOPPER, SM_80
from torchweld.targets.target import Target

_TEMPLATES = (
    "multi_tensor", "chain", "attention", "attention/hopper", "attention/gpu",
    "attention/gpu/sums", "gemm/skinny", "gemm/hopper", "gemm/triton", "runs",
    "pointwise_reduce/gpu",
)  # fmt: skip
_PASSES = (
    "rewrite", "paddings", "slices", "biases", "one row", "channels last", "im2col",
    "few channels", "narrow groups", "depthwise", "statistics", "contiguous rows",
    "factors together", "scores", "single rows", "row totals", "pairs", "lay factors", "plan",
    "long scans", "row chunks", "align temporaries", "pad products", "exact windows", "transposed",
    "join products", "chains", "attention", "library calls (GPU)", "align rows", "align extents",
    "few terms", "taps apart", "stacks", "neighbours", "overwrite operands", "side by side",
    "compared",
)  # fmt: skip

# Copy 3.02 TB/s and 687 TFLOP/s measured; launches inside a CUDA graph.
H100 = Target(
    "H100", "cuda", 132, 3.02e12, 6.0e12, 50 << 20, 2.9e13, 3.4e14, 1.2e-6, 192 << 10, 32, 4096,
    227 << 10, (9, 0), features=("wgmma", "tma", "pdl"), templates=_TEMPLATES,
    passes=_PASSES, products=HOPPER, memory_bytes=80 << 30,
)  # fmt: skip
H200 = replace(H100, name="H200", dram_bytes_per_s=4.2e12, memory_bytes=141 << 30)
A100 = Target(
    "A100", "cuda", 108, 1.7e12, 4.0e12, 40 << 20, 9.0e12, 1.3e14, 1.5e-6, 128 << 10, 32, 4096,
    163 << 10, (8, 0), templates=_TEMPLATES, passes=_PASSES, products=SM_80,
    memory_bytes=40 << 30,
)  # fmt: skip
# Blackwell, compile-only: published rates, and the templates that Triton 3.6 compiles for it.
SM_100 = Target(
    "B200", "cuda", 148, 6.4e12, 1.2e13, 126 << 20, 3.7e13, 1.0e15, 1.2e-6, 192 << 10, 32, 4096,
    227 << 10, (10, 0), features=("tma", "pdl"), templates=_TEMPLATES, passes=_PASSES,
    products=HOPPER.scaled(1.0e15 / 3.4e14), memory_bytes=192 << 30,
)  # fmt: skip
GENERIC = Target(
    "CUDA", "cuda", 64, 6.0e11, 1.5e12, 4 << 20, 8.0e12, 4.0e13, 2.0e-6, 64 << 10, 32, 4096,
    99 << 10, (8, 0), templates=_TEMPLATES, passes=_PASSES, products=SM_80.scaled(4.0e13 / 1.3e14),
)  # fmt: skip
KNOWN = (H200, H100, A100, SM_100)
