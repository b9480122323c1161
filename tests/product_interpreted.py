"""Product kernels on the CPU, by Triton's interpreter (TRITON_INTERPRET=1): one line for each
result. In float16: bfloat16 dots are wrong there."""

from __future__ import annotations

from dataclasses import replace

import torch

import product_cases as cases
from image_cases import convolution, normalised
from product_check import problems
from torchweld.core import dtypes
from torchweld.templates.gemm.schedule import ProductSchedule
from triton_cases import Case, tensors
from triton_interpreted import start
from triton_run import launches, prepare, product_bundle

TILE = ProductSchedule("triton", 32, 32, 16, 4, 2, group=2)
STREAM = ProductSchedule("stream", 16, 16, 32, 4, 2)
SHARED = ProductSchedule("stream", 16, 16, 32, 4, 2, splits=3)
EXTREMES = {n: torch.full((r, 64), -128, dtype=torch.int8) for n, r in (("x", 64), ("w", 32))}

ALL = [
    (cases.linear(64, 32, 32, "f16"), TILE),
    (cases.linear(37, 50, 70, "f32", "km", "kn", gap=3), TILE),
    (cases.bias_gelu(33, 31, 17, "f32"), TILE),
    (cases.gated(33, 40, 20, "f32"), TILE),
    (cases.batched(3, 20, 33, 24, "f32"), replace(TILE, splits=2)),
    (cases.linear(37, 50, 70, "f16"), TILE),
    (cases.linear(37, 50, 70, "f16", "km", "kn", gap=3), TILE),
    (cases.apart(cases.linear(37, 51, 70, "f16", "km", "kn")), TILE),  # lines end in junk
    (cases.linear("s0", 40, 24, "f16", sizes={"s0": 37}), TILE),
    (cases.linear(37, 40, "s0", "f16", sizes={"s0": 29}), TILE),
    (cases.bias_gelu(33, 31, 17, "f16"), TILE),
    (cases.bias_residual(65, 33, 16, "f16"), TILE),
    (cases.gated(33, 40, 20, "f16"), TILE),
    (cases.normed(33, 40, 20, "f16"), TILE),
    (cases.normed(5, 40, 100, "f16", pair=True), SHARED),
    (cases.scaled_outputs(33, 40, 20, "f16"), TILE),
    (cases.heads(3, 7, 2, 20, 24, "f16"), TILE),
    (cases.heads(3, 7, 2, 20, 24, "f16", transposed=True), TILE),
    (cases.from_heads(3, 7, 2, 20, 24, "f16"), TILE),
    (cases.batched(3, 20, 33, 24, "f16"), TILE),
    (cases.batched(3, 5, 33, 100, "f16", "bnk"), SHARED),
    (convolution(2, 40, (5, 7), 60, (1, 1), groups=5, dtype="f16"), TILE),
    (normalised(3, 36, (4, 5), 24, (1, 1), groups=3, dtype="f16"), replace(TILE, block_n=16)),
    (cases.gate_before(33, 40, 20, "f16"), TILE),
    (cases.scaled_before(33, 40, 20, "f16"), TILE),
    (cases.shifted(33, 40, 20, "f16"), TILE),
    (cases.gathered(33, 40, 20, "f16"), TILE),
    (cases.side_by_side(5, (32, 16, 48), 100, "f16"), SHARED),  # each tile in one part
    (cases.side_by_side(5, (20, 16, 40), 100, "f16"), SHARED),
    (cases.side_by_side(1, (32, 64), 100, "f16"), STREAM),
    (cases.into_cache(5, 4, 2, 16, 100, "f16"), SHARED),
    (cases.scattered(37, 50, 70, "f16"), TILE),
    (cases.rotary(5, (4, 2, 2), 32, 100, "f16"), SHARED),
    (cases.rotary(5, (2, 1, 1), 48, 100, "f16", interleaved=True), SHARED),
    (cases.three(5, 40, 100, "f16"), SHARED),
    (cases.dropout(33, 40, 20, "f16"), TILE),
    (cases.lower_half(33, 40, 20, "f16"), TILE),
    (cases.summed(37, 50, 70, "f16"), TILE),
    (cases.summed(64, 32, 32, "f16"), TILE),
    (cases.summed(7, 50, 130, "f16"), SHARED),
    (cases.summed_halves(37, 50, 70, "f16"), TILE),
    (cases.hard(cases.bias_gelu(33, 31, 17, "f16"), 33, 17), TILE),
    (cases.hard(cases.normed(9, 31, 70, "f16"), 9, 70), SHARED),
    (cases.linear(1, 50, 130, "f16"), STREAM),
    (cases.bias_residual(1, 50, 130, "f16"), SHARED),
    (cases.hard(cases.gated(1, 50, 130, "f16"), 1, 130), SHARED),
    (cases.normed(1, 50, 130, "f16"), SHARED),
    (cases.linear(37, 50, 130, "f16"), SHARED),
    (cases.int8_weight(5, 50, 130, "f16"), SHARED),
    (cases.int8_weight(1, 50, 130, "f16"), STREAM),
    (cases.int8_weight(5, 50, 130, "f16", dtypes.f8e4m3), SHARED),
    (cases.integers(37, 50, 70, "f16"), replace(TILE, block_k=32)),
    (cases.integers(5, 50, 130, "f16"), SHARED),
    (cases.integers(64, 32, 64, "f16", fill=EXTREMES), replace(TILE, block_k=32)),
    (cases.nibbles(5, 40, 3, 16, "f16"), STREAM),  # a group is a block: scales are read once
    (cases.nibbles(1, 40, 5, 32, "f16"), SHARED),
    (cases.nibbles(7, 40, 7, 8, "f16"), SHARED),  # a block has two groups
]  # fmt: skip


def run(case: Case, schedule: ProductSchedule) -> list[str]:
    made, bundle = tensors(case), product_bundle(case, schedule)
    prepare(case, bundle, made)
    launches(case, bundle, made, start)
    counters = [n for n in bundle.zeroed if made[n].any()]
    return problems(case, made) + [f"{n} is not zero again" for n in counters]


def main() -> None:
    for case, schedule in ALL:
        found = run(case, schedule)
        print(f"DIFFERS {case.name} {found}" if found else f"agrees {case.name}", flush=True)


if __name__ == "__main__":
    main()
