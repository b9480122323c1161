"""How score nests are tiled and priced on a GPU, what is refused, and where masks are left out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nest_gpu_cases import (
    BIAS,
    CAUSAL,
    DROPOUT,
    PLAIN,
    SOFTCAP,
    WINDOW,
    NestCase,
    Sizes,
    bias_gradient,
    forward,
    keys_gradient,
    queries_gradient,
    sigmoid,
    two_walks,
)
from torchweld.core import dtypes
from torchweld.ir.affine import axis, constant
from torchweld.ir.build import BodyBuilder
from torchweld.ir.nodes import Op
from torchweld.targets.find import named_target
from torchweld.templates import registry
from torchweld.templates.attention.gpu import sums
from torchweld.templates.attention.gpu.edges import Edge, edge_of, implied
from torchweld.templates.attention.gpu.generate import generate
from torchweld.templates.attention.gpu.price import loaded, seconds
from torchweld.templates.attention.gpu.schedule import Work, candidates, shared_bytes
from torchweld.templates.attention.gpu.template import TEMPLATE
from torchweld.templates.attention.gpu.tiles import with_known
from torchweld.templates.gemm.choice import choose
from torchweld.templates.gemm.price import Work as Product
from torchweld.templates.gemm.price import library_s
from torchweld.templates.template import Kernel, Problem

H100, A100, GENERIC = (named_target(n) for n in ("H100", "A100", "generic"))
Z = Sizes(2, 4, 2, 4096, 4096, 128, 128)


def problem(case: NestCase, target=H100) -> Problem:
    return Problem(case.comp, case.buffers, target, case.sizes, choose)


def kernel(case: NestCase, target=H100) -> Kernel:
    return registry.chosen(problem(case, target))


def work(case: NestCase, target=H100) -> Work:
    return Work(case.comp, case.buffers, case.nest, target, case.sizes)


@pytest.mark.parametrize("name, left, right, edge", [
    ("le", axis("l") + axis("i") * -1, constant(0), Edge("l", True, axis("i") + 1)),
    ("lt", axis("l"), axis("i"), Edge("l", True, axis("i"))),
    ("ge", axis("i"), axis("l"), Edge("l", True, axis("i") + 1)),
    ("lt", axis("i") + axis("l") * -1, constant(9), Edge("l", False, axis("i") + -8)),
    ("gt", axis("l"), constant(3), Edge("l", False, constant(4))),
    ("lt", axis("l") * 2, axis("i"), None),
    ("lt", axis("i"), constant(3), None),
])  # fmt: skip
def test_comparisons_bound_a_key(name: str, left, right, edge: Edge | None):
    b = BodyBuilder()
    value = b.op(name, b.index(left), b.index(right))
    assert edge_of(b.body, value, ("l",)) == edge


def test_what_is_known_to_be_true_leaves_the_body():
    b = BodyBuilder()
    one, other = (b.op("lt", b.index(axis(n)), b.index(constant(3))) for n in "il")
    x, lowest = b.load("x", (axis("i"),), dtypes.f32), b.const(-1.0, dtypes.f32)
    both = b.op("bit_and", one, other)
    chosen = b.op("where", both, x, lowest)
    result = b.op("exp", chosen)
    image, body = with_known(b.body, {one: True})
    assert image[both] == other and body[chosen].args == (other, x, lowest)
    image, body = with_known(b.body, {one: True, other: True})
    assert image[chosen] == x and body[result] == Op("exp", (x,), dtypes.f32)


def test_a_mask_says_which_keys_count_or_which_do_not():
    """where(l <= i, x, -inf), and where(l > i, -inf, x) as masked_fill writes it: in whole blocks
    neither is asked."""
    for case in (forward(Z, CAUSAL), sigmoid(Z, "bf16")):
        s = kernel(case).schedule
        (known,) = implied(case.comp, case.nest, s).values()
        assert known == (case.comp.name == "forward_causal")


@pytest.mark.parametrize("target", (H100, A100, GENERIC), ids=lambda t: t.name)
@pytest.mark.parametrize("form", (forward, queries_gradient, keys_gradient))
def test_tiles_fit_in_shared_memory(form, target):
    for width in (32, 64, 128, 256):
        for score, dtype in ((CAUSAL, "bf16"), (BIAS, "bf16"), (DROPOUT, "f16"), (PLAIN, "f32")):
            sizes = replace(Z, depth=width, columns=width)
            for s in candidates(w := work(form(sizes, score, dtype), target)):
                assert shared_bytes(w, s) <= target.shared_bytes


def test_few_tiles_share_their_keys():
    few, many = (forward(Sizes(1, n, 1, 128, 8192, 128, 128), PLAIN, saved=True) for n in (2, 200))
    assert kernel(few).schedule.splits == 8
    assert kernel(many).schedule.splits == 1
    assert kernel(two_walks(Sizes(1, 2, 1, 128, 8192), "bf16")).schedule.splits == 1


def test_keys_that_do_not_fit_in_the_cache_are_walked_over_group_by_group():
    """16 MB of keys and values stay in an H100's cache, 128 MB do not."""
    short, long = (forward(replace(Z, batch=b), CAUSAL, saved=True) for b in (2, 16))
    assert kernel(short).schedule.group == 0
    assert 0 < kernel(long).schedule.group < 16 * 8
    assert kernel(long).schedule.group % 2 == 0  # heads that share keys are in one


def test_heads_that_share_keys_are_rows_of_one_tile_where_rows_are_few():
    assert kernel(forward(Sizes(8, 2, 4, 8, 4096), CAUSAL, saved=True)).schedule.rows == ("g", "i")
    assert kernel(forward(Z, CAUSAL, saved=True)).schedule.rows == ("i",)
    assert kernel(keys_gradient(Z, CAUSAL)).schedule.keys == ("i",)


def test_many_queries_are_not_for_the_template_of_decoding():
    many = kernel(forward(Z, CAUSAL), A100)
    assert many.template == "attention/gpu" and "8192 queries" in many.reason
    assert kernel(forward(Z, CAUSAL)).template == "attention/hopper"
    assert kernel(forward(Sizes(1, 2, 4, 4, 4096), PLAIN)).template == "attention"
    varying = forward(Sizes(1, 2, 4, "s0", "s0"), CAUSAL, sizes={"s0": 900})
    assert kernel(varying).template == "attention/gpu"


def test_masked_blocks_cost_nothing_and_work_on_scores_something():
    plain, causal, window, softcap, dropout = (
        kernel(forward(Z, s, saved=True)).predicted_s
        for s in (PLAIN, CAUSAL, WINDOW, SOFTCAP, DROPOUT)
    )
    assert window < 0.15 * causal < causal < 0.6 * plain
    assert causal < softcap < dropout


def test_predictions_are_near_what_triton_reaches():
    """FlashAttention-2 in Triton on an H100, heads of 128: 400 to 450 TFLOP/s forward, 250 to 350
    for both gradients."""
    flops = 4 * Z.batch * Z.shared * Z.heads * Z.queries * Z.keys * Z.depth

    def predicted(case: NestCase) -> float:
        return registry.tried("attention/gpu", problem(case)).predicted_s

    assert 3.5e14 < flops / predicted(forward(Z, PLAIN, saved=True)) < 4.7e14
    backward = sum(predicted(f(Z, PLAIN)) for f in (queries_gradient, keys_gradient))
    assert 2.4e14 < 2.5 * flops / backward < 3.6e14


def test_programs_of_one_row_each_are_priced_as_such():
    """A nest whose rows are points of the batch, as where a factor of scores is an array of pairs:
    each program loads all keys, and multiplies fifteen rows that are not there."""
    made = work(forward(replace(Z, queries=256, keys=256), PLAIN))
    rows, apart = made.nest.rows, replace(
        made, nest=replace(made.nest, batch=(*made.nest.batch, *made.nest.rows), rows=()))
    tiles = next(candidates(made))
    lone = replace(tiles, rows=(), block_rows=16)
    assert rows and seconds(apart, lone) > 8 * seconds(made, tiles)


WIDE = Sizes(2, 8, 1, 1024, 1024, 256, 256)


def test_float32_gradients_of_wide_heads_are_dearer_than_their_products_apart():
    """In tiles of 16 rows, which mma.sync multiplies: no registers hold the parts of more."""
    each_s = library_s(Product(16, 1024, 1024, 256, width=4), H100)
    queries, keys = (kernel(f(WIDE, PLAIN, "f32")) for f in (queries_gradient, keys_gradient))
    assert queries.schedule.block_rows == keys.schedule.block_rows == 16
    assert queries.predicted_s > 3.5 * each_s and keys.predicted_s > 4.5 * each_s


def test_warps_beside_each_other_make_the_same_float32_scores_again():
    made = work(keys_gradient(WIDE, PLAIN, "f32"))
    s = next(candidates(made))
    few, many = (seconds(made, replace(s, num_warps=n)) for n in (4, 8))
    assert many > 1.3 * few
    assert seconds(made, replace(s, num_warps=8, block_keys=64)) == pytest.approx(few, rel=0.02)


@pytest.mark.parametrize("heads, depth, tile", [
    (1, 64, (16, 64)), (64, 64, (64, 32)), (1, 128, (16, 64)), (1, 256, (64, 64)),
])  # fmt: skip
def test_small_float32_tiles_where_others_leave_multiprocessors_idle(heads, depth, tile):
    z = Sizes(2, heads, 1, 128, 128, depth, depth)
    made = work(forward(z, PLAIN, "f32"))
    first = next(candidates(made))
    assert (first.block_rows, first.block_keys) == tile
    ampere = next(candidates(work(forward(z, PLAIN, "f32"), A100)))
    assert (ampere.block_rows, ampere.block_keys) != (16, 64)


@pytest.mark.parametrize("batch, queries, keys, rows, block, measured_us", [
    (2, 128, 128, 16, 64, 6.6), (2, 128, 128, 64, 32, 14.3), (8, 512, 512, 16, 64, 26.4),
    (64, 512, 512, 64, 32, 84.8), (2, 1024, 1024, 16, 64, 46.0),
])  # fmt: skip
def test_float32_forward_as_measured_on_an_h100(batch, queries, keys, rows, block, measured_us):
    made = work(forward(Sizes(batch, 1, 1, queries, keys, 64, 64), PLAIN, "f32"))
    s = replace(next(candidates(made)), block_rows=rows, block_keys=block, splits=1)
    assert seconds(made, s) * 1e6 == pytest.approx(measured_us, rel=0.25)


def test_a_factor_of_two_products_is_loaded_once():
    made = work(keys_gradient(Z, PLAIN))
    tiles = next(candidates(made))
    each = Z.batch * Z.shared * Z.heads * Z.queries * 2 * Z.depth * 2  # queries and their gradients
    assert loaded(made, tiles) == each * Z.keys / tiles.block_rows


@pytest.mark.parametrize("case, target, why", [
    (forward(replace(Z, depth=512), CAUSAL), H100, "heads of 512"),
    (forward(Z, CAUSAL), replace(H100, capability=(7, 5)), "tensor cores"),
    (forward(Z, CAUSAL, "f64"), H100, "float16"),
], ids=["head", "device", "type"])  # fmt: skip
def test_what_is_refused(case: NestCase, target, why: str):
    p = problem(case, target)
    assert why in TEMPLATE.supports(TEMPLATE.match(p), p)


@pytest.mark.parametrize("results, is_near", [(dtypes.bf16, True), (dtypes.f32, False)], ids=str)
def test_a_bound_of_scores_is_near_one_only_where_results_are_rounded(results, is_near):
    """1 - 2 / (1 + exp(2 x)) is off by 2e-7, and so by 1e-5 of a bound of 50."""
    case = forward(Z, SOFTCAP, results=results)
    made = generate(case.comp, case.buffers, case.nest, next(candidates(work(case))), early=False)
    assert ("_tanh(" in made.sources[0].text) != is_near


def test_sums_of_float32_scores_of_wide_heads_are_refused():
    p = problem(bias_gradient(replace(Z, depth=128), BIAS, "f32"))
    assert "float32" in sums.TEMPLATE.supports(sums.TEMPLATE.match(p), p)
    narrow = problem(bias_gradient(replace(Z, batch=2, depth=64, columns=64), BIAS, "f32"))
    assert registry.tried("attention/gpu/sums", narrow).template == "attention/gpu/sums"
