"""Score nests on a GPU, forward and backward: against float64 and eager, and again with the same
bits."""

from __future__ import annotations

import pytest
import torch

from nest_gpu_cases import (
    CAUSAL,
    NestCase,
    Sizes,
    few,
    forward,
    generated,
    on_hopper,
    varied,
    varied_on_hopper,
)
from product_check import problems
from triton_cases import tensors
from triton_run import compile_in_processes, launch, prepare

IS_HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 9
ON_HOPPER = varied_on_hopper() if IS_HOPPER else []
ALL = [*varied("bf16"), *few("f16"), *few("f32"), *ON_HOPPER]


@pytest.fixture(scope="module")
def compiled() -> dict:
    return compile_in_processes([s for c in ALL for s in generated(c).sources])


@pytest.mark.parametrize("case", ALL, ids=lambda c: c.name)
def test_results_are_as_exact_as_eager(case: NestCase, compiled: dict):
    made, bundle = tensors(case, "cuda"), generated(case)
    prepare(case, bundle, made)
    runs = []
    for _ in range(3):
        for name in case.comp.writes:
            made[name].fill_(1)
        launch(case, bundle, made, compiled)
        runs.append({n: made[n].cpu() for n in case.comp.writes})
        assert not any(made[n].any() for n in bundle.zeroed)
    assert problems(case, runs[0]) == []
    for again in runs[1:]:
        for name, value in runs[0].items():
            assert torch.equal(value.nan_to_num(), again[name].nan_to_num())


@pytest.mark.hopper
@pytest.mark.parametrize("odd", ["q", "k", "v", "o"])
def test_unaligned_addresses(odd: str):
    """TMA does not take them: the Triton kernel does."""
    case = on_hopper(forward(Sizes(1, 2, 1, 150, 210, 64, 64), CAUSAL))
    made, bundle = tensors(case, "cuda"), generated(case)
    memory = torch.empty(made[odd].numel() + 1, dtype=made[odd].dtype, device="cuda")
    made[odd] = memory[1:].view(made[odd].shape).copy_(made[odd])
    launch(case, bundle, made, compile_in_processes(bundle.sources))
    assert problems(case, {"o": made["o"].cpu()}) == []
