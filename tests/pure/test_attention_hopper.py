"""Score nests in Gluon: groups of warps and the one that copies, interleaved at random, and what
the template refuses."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from gluon_interpreted import fails, interpret
from nest_gpu_cases import (
    BIAS,
    CAUSAL,
    DOCUMENTS,
    DROPOUT,
    PLAIN,
    SOFTCAP,
    WINDOW,
    NestCase,
    Sizes,
    forward,
    generated,
    keys_gradient,
    on_hopper,
    queries_gradient,
    small_on_hopper,
    two_walks,
)
from product_check import problems
from torchweld.targets.find import named_target
from torchweld.templates import registry
from torchweld.templates.attention.hopper.template import TEMPLATE
from torchweld.templates.gemm.choice import choose
from torchweld.templates.template import Kernel, Problem
from triton_cases import tensors

H100 = named_target("H100")


@pytest.mark.parametrize(("case", "seed"), [
    (case, at % 2) for at, case in enumerate(small_on_hopper())
], ids=lambda v: getattr(v, "name", str(v)))  # fmt: skip
def test_whatever_comes_first_the_result_is_the_same(case: NestCase, seed: int):
    (source,) = generated(case).sources
    made = tensors(case)
    interpret(source, made, case.sizes, seed=1001 * seed)
    assert problems(case, made) == []


WAITS = {
    "rows have come": r"mbarrier\.wait\(ready\.index.*",
    "keys have come": r"mbarrier\.wait\(ready_b0.*",
    "values have come": r"mbarrier\.wait\(ready_b1.*",
    "keys are used": r"mbarrier\.wait\(empty_b0.*",
    "values are used": r"mbarrier\.wait\(empty_b1.*",
    "numbers have come": r"mbarrier\.wait\(ready_n.*",
}
GRADIENT = on_hopper(keys_gradient(Sizes(1, 1, 1, 100, 40, 16, 16), PLAIN), 16, 32)
FORWARD = on_hopper(forward(Sizes(1, 1, 1, 40, 100, 16, 16), PLAIN), 16, 16)


@pytest.mark.parametrize("case, wait", [
    *((FORWARD, wait) for wait in WAITS if "numbers" not in wait),
    *((GRADIENT, wait) for wait in WAITS if wait != "values are used"),  # both rings are at a time
], ids=lambda x: x.name if isinstance(x, NestCase) else x)  # fmt: skip
def test_without_a_barrier_something_is_wrong(case: NestCase, wait: str):
    (source,) = generated(case).sources
    text, count = re.subn(WAITS[wait], "pass", source.text)
    assert count > 0
    assert any(fails(case, replace(source, text=text), seed) for seed in range(20))


@pytest.mark.parametrize("keys", [16, 32, 64])
def test_what_tma_writes_begins_at_a_multiple_of_128_bytes(keys: int):
    """Numbers of float32 for 16 keys are 64: a ring's second ended in "misaligned address"."""
    case = on_hopper(keys_gradient(Sizes(1, 1, 1, 9, 100, 16, 16), PLAIN), 16, keys)
    (source,) = generated(case).sources
    assert ("copy_in(d_n0" in source.text) == (keys >= 32)


def test_a_block_that_masks_leave_whole_has_no_mask():
    (source,) = generated(on_hopper(forward(Z, WINDOW))).sources
    first, whole, last = source.text.split("for at in range(")[1:4]
    assert first.startswith("first + 1, inner") and last.startswith("outer, last")
    assert "lc <" in first and "lc <" in last and "lc <" not in whole


Z = Sizes(2, 4, 2, 2048, 2048, 128, 128)


def kernel(case: NestCase, target=H100) -> Kernel:
    return registry.chosen(Problem(case.comp, case.buffers, target, case.sizes, choose))


def test_groups_and_keys_are_as_many_as_registers_hold():
    heads = {n: replace(Z, depth=n, columns=n) for n in (64, 128, 256)}
    tiles = {n: kernel(forward(z, PLAIN)).schedule for n, z in heads.items()}
    assert {n: (s.groups, s.block_keys) for n, s in tiles.items()} == {
        64: (3, 128), 128: (2, 128), 256: (2, 64)}  # fmt: skip
    assert kernel(forward(heads[64], WINDOW)).schedule.groups == 2
    assert kernel(forward(heads[64], BIAS)).schedule.groups == 2
    assert kernel(forward(heads[64], DOCUMENTS)).schedule.block_keys == 64


@pytest.mark.parametrize("case, why", [
    (keys_gradient(replace(Z, depth=256, columns=256, heads=1), CAUSAL), "too wide products"),
    (keys_gradient(Z, CAUSAL), "several axes"),
    (forward(Z, CAUSAL, "f32"), "bfloat16"),
    (forward(Z, DROPOUT), "random numbers"),
    (forward(replace(Z, depth=512), CAUSAL), "too wide products"),
    (forward(Sizes(1, 1, 1, 512, 2048, 128, 128), CAUSAL), "too few rows"),
    (forward(Sizes(2, 4, 2, "s0", "s0", 128, 128), CAUSAL, sizes={"s0": 900}), "at the call"),
    (forward(replace(Z, depth=36), CAUSAL), "16 bytes"),
    (two_walks(Z, "bf16"), "more than one walk"),
], ids=lambda x: x.name if isinstance(x, NestCase) else "")  # fmt: skip
def test_what_is_refused_is_left_to_triton(case: NestCase, why: str):
    p = Problem(case.comp, case.buffers, H100, case.sizes, choose)
    assert why in TEMPLATE.supports(TEMPLATE.match(p), p)


def test_another_device_has_another_template():
    assert kernel(forward(Z, CAUSAL), named_target("A100")).template == "attention/gpu"


def test_addresses_that_tma_does_not_take_have_a_kernel_in_triton():
    bundle = registry.generate(kernel(forward(Z, CAUSAL)))
    (source,) = bundle.sources
    assert source.language == "gluon" and source.otherwise.language == "triton"
    assert not bundle.scratch


def test_gradients_of_simple_scores_fit_in_registers():
    heads = {n: Sizes(4, 16, 1, 2048, 2048, n, n) for n in (64, 128, 256)}
    assert kernel(queries_gradient(heads[64], CAUSAL)).schedule.groups == 3
    assert kernel(queries_gradient(heads[128], CAUSAL)).schedule.overlapped
    simple = kernel(keys_gradient(heads[128], CAUSAL))
    assert simple.template == "attention/hopper" and not simple.schedule.overlapped
    for score in (SOFTCAP, BIAS):
        assert kernel(keys_gradient(heads[128], score)).template == "attention/gpu"
        assert kernel(keys_gradient(heads[64], score)).template == "attention/hopper"
    assert kernel(queries_gradient(heads[256], CAUSAL)).template == "attention/gpu"


def test_a_product_begins_as_soon_as_its_weights_are_known():
    """That of values needs no gradient of weights."""
    (source,) = generated(GRADIENT).sources
    lines = [line.strip() for line in source.text.split("for at in ")[1].splitlines()]
    waits = [n for n, line in enumerate(lines) if "warpgroup_mma_wait" in line]
    products = [n for n, line in enumerate(lines) if line.startswith(("o0 =", "o1 ="))]
    assert len(waits) == 3 and len(products) == 2
    assert waits[0] < products[0] < waits[1] < products[1] < waits[2]


def test_no_program_has_much_more_keys_than_others():
    """Few points of the batch at a time, for the cache, would give one 1.2 times the average."""
    long = Sizes(4, 16, 1, 4096, 4096, 128, 128)
    assert 0 < kernel(forward(long, PLAIN)).schedule.group < 64
    assert kernel(forward(long, CAUSAL)).schedule.group == 0  # all at a time
