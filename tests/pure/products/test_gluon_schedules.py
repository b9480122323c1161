"""gemm/hopper/schedule.py: what passes through shared memory, which tiles are correct, which come
first."""

from __future__ import annotations

from dataclasses import replace

import pytest

import product_cases as cases
from product_cases import Body, parts
from torchweld.core.errors import InvalidIR
from torchweld.targets.find import named_target
from torchweld.templates.gemm.choice import choose
from torchweld.templates.gemm.concatenation import pieces_of
from torchweld.templates.gemm.hopper import schedule as rules
from torchweld.templates.gemm.schedule import ProductSchedule as P
from torchweld.templates.gemm.triton import schedule as triton_rules
from torchweld.templates.template import NO_SCHEDULE
from triton_cases import Case

H100 = named_target("H100")
ALL = [
    cases.bias_gelu(4096, 3072, 768), cases.bias_residual(4096, 768, 3072),
    cases.gated(8192, 3072, 768), cases.scaled_outputs(4096, 768, 768),
    cases.dropout(4096, 768, 768), cases.heads(32, 128, 12, 64, 768),
    cases.batched(64, 512, 512, 64), cases.linear("s0", 768, 768, sizes={"s0": 4096}),
]  # fmt: skip


def first(case: Case, table=H100) -> P:
    return next(rules.candidates(*parts(case), table, case.sizes))


@pytest.mark.parametrize("case", ALL, ids=lambda c: c.name)
def test_candidates_are_valid_and_differ(case: Case):
    found = list(rules.candidates(*parts(case), H100, case.sizes))
    assert len(found) >= 4 and len(set(found)) == len(found)
    for tiles in found:
        assert rules.valid(tiles, *parts(case))
        assert rules.roles(*parts(case), tiles).free_bytes >= 0


def test_what_no_tile_changes_is_worked_out_once(monkeypatch):
    """Some fifty tiles are tried: each factor, residual and result has one window."""
    made = []

    def window(accesses, contraction, access, *about):
        made.append(access)
        return of_access(accesses, contraction, access, *about)

    of_access = rules.window
    monkeypatch.setattr(rules, "window", window)
    accesses, contraction = parts(cases.bias_residual(4096, 768, 3072))
    assert rules.supports(accesses, contraction, H100) is None
    found = list(rules.candidates(accesses, contraction, H100, {}))
    assert all(rules.valid(tiles, accesses, contraction) for tiles in found)
    assert len(made) == len({id(access) for access in made}) == 4


def test_epilogues_take_place_beside_products():
    """Of the next tile, but where all tiles are made at once."""
    assert first(cases.bias_gelu(12608, 3072, 768)).pingpong
    assert first(cases.gated(8192, 3072, 768)).pingpong
    assert not first(cases.residual(1024, 4096, 4096)).pingpong


@pytest.mark.parametrize("activated", [{0}, {1}, {0, 1}], ids=str)
def test_slices_of_products_side_by_side_are_as_wide_as_the_narrowest(activated):
    """Their results pass through the same shared memory."""
    wide = P("gluon", 128, 128, 64, 4, 3, pingpong=True)
    case = cases.side_by_side(2048, (1152, 4096), 1024, activated=activated)
    found = rules.roles_of(pieces_of(*parts(case)), wide)
    assert [r.slice for r in found] == [64 if len(activated) == 2 else 32] * 2


def test_slices_are_as_wide_as_registers_allow():
    wide, narrow = (P("gluon", 128, n, 64, 4, 3, pingpong=True) for n in (128, 192))
    for case, tiles, columns in (
        (cases.bias_gelu(4096, 768, 768), wide, 64), (cases.bias_gelu(4096, 768, 768), narrow, 32),
        (cases.linear(4096, 768, 768), wide, 32), (cases.bias_residual(4096, 768, 768), wide, 32),
        (cases.dropout(4096, 768, 768), wide, 32), (cases.heads(32, 128, 12, 64, 768), wide, 32),
    ):  # fmt: skip
        assert rules.roles(*parts(case), tiles).slice == columns


def test_little_work_is_for_triton():
    little, more = cases.bias_gelu(256, 3072, 768), cases.bias_residual(512, 768, 3072)
    assert choose(*parts(little), little.buffers, H100).form == "triton"
    assert choose(*parts(more), more.buffers, H100).form == "gluon"


def test_a_form_without_a_tiling_leaves_the_product_to_the_next(monkeypatch):
    more = cases.bias_residual(512, 768, 3072)
    monkeypatch.setattr(rules, "candidates", lambda *given: iter(()))
    assert choose(*parts(more), more.buffers, H100).form == "triton"
    monkeypatch.setattr(triton_rules, "candidates", lambda *given: iter(()))
    assert choose(*parts(more), more.buffers, H100) == NO_SCHEDULE
    with pytest.raises(InvalidIR, match="no tiling"):
        triton_rules.first(*parts(more), H100)


def test_short_kernels_begin_early():
    assert first(cases.bias_gelu(1024, 3072, 768)).early
    assert not first(cases.bias_gelu(12608, 3072, 768)).early


def test_heavier_epilogues_are_predicted_to_take_longer():
    tiles = P("gluon", 128, 256, 64, 8, 4)
    both = cases.linear(4096, 3072, 768), cases.bias_gelu(4096, 3072, 768)
    plain, gelu = (rules.predicted_cycles(tiles, pieces_of(*parts(c)), H100, {}) for c in both)
    assert 1.1 < gelu / plain < 2


def test_tiles_fill_whole_waves():
    """768 columns of 4096 rows are 128 tiles of 128 x 192, but 96 of 128 x 256."""
    tiles = first(cases.bias_residual(4096, 768, 3072))
    assert (tiles.block_m, tiles.block_n) == (128, 192)
    few = first(cases.linear(128, 768, 768))
    assert (few.block_m, few.block_n) == (64, 64)


def test_blocks_are_as_many_as_the_device_runs():
    case = cases.linear(4096, 3072, 3072)
    assert first(case, replace(H100, units=114)).programs == 114


def test_residuals_and_results_share_what_the_stages_leave():
    case = cases.bias_residual(4096, 768, 768)
    tiles = P("gluon", 128, 256, 64, 8, 3)
    roles = rules.roles(*parts(case), tiles)
    assert len(roles.results) == 1 and roles.result_slots == 2
    assert len(roles.residuals) == 1 and roles.residual_slots == 3
    full = rules.roles(*parts(case), replace(tiles, stages=4))
    assert not full.residuals and len(full.results) == 1  # loaded from the epilogue


def test_what_tma_cannot_store_is_stored_from_registers():
    tiles = P("gluon", 128, 128, 64, 8, 3)
    assert not rules.roles(*parts(cases.heads(3, 50, 4, 32, 96)), tiles).results
    two = rules.roles(*parts(cases.scaled_outputs(256, 136, 64)), tiles)
    assert [w.buffer for w in two.results.values()] == ["y", "z"]  # not the bools
    odd = rules.roles(*parts(cases.linear(256, 133, 64)), tiles)
    assert not odd.results  # rows of 266 bytes


def test_tma_stores_rows_that_end_where_nobody_is_hurt():
    """It writes up to a multiple of 16 bytes."""
    tiles = P("gluon", 128, 128, 64, 8, 3)
    apart = cases.apart(cases.linear(256, 133, 64), "y")
    assert rules.roles(*parts(apart), tiles).results
    rows = replace(apart.buffers["y"], slack=0)  # a window of the caller's
    given = replace(apart, buffers=apart.buffers | {"y": rows})
    assert not rules.roles(*parts(given), tiles).results
    halves = cases.apart(cases.summed_halves(300, 132, 72), "wab")
    assert not rules.roles(*parts(halves), tiles).results
    whole = cases.summed_halves(300, 136, 72)
    assert len(rules.roles(*parts(whole), tiles).results) == 2


def test_another_device_is_refused():
    case = cases.linear(256, 256, 256)
    assert "no Hopper" in rules.supports(*parts(case), named_target("A100"))


def test_a_result_along_the_depth_is_refused():
    b = Body("bf16", m=128, n=64, k=64)
    x = b.read("x", "mk")
    b.write("y", "mn", b.dot(x, b.read("w", "nk")))
    b.write("z", "mk", b.op("mul", x, 2.0))
    case = b.case("both")
    accesses, found = parts(case)
    assert "along the depth" in rules.supports(accesses, found, H100)


def unsupported(case: Case) -> str | None:
    return rules.supports(*parts(case), H100)


def test_matrices_side_by_side_take_one_way_through_shared_memory():
    case = cases.side_by_side(256, (128, 64, 72), 128)
    assert unsupported(case) is None
    odd = cases.side_by_side(256, (128, 65), 128)  # rows of 130 bytes are stored from registers
    assert "different layouts" in unsupported(odd)


def test_tiles_of_matrices_side_by_side_are_counted_apart():
    """Three of 256 columns are three tiles of 256, as one of 768; others are five."""
    tiles = P("gluon", 128, 256, 64, 8, 4)
    same = [cases.linear(4096, 768, 768), cases.side_by_side(4096, (256,) * 3, 768)]
    uneven = cases.side_by_side(4096, (264, 264, 240), 768)
    one, three, five = (cycles_of(c, tiles) for c in (*same, uneven))
    assert abs(one - three) < 0.1 * one and five > 1.5 * three


def cycles_of(case: Case, tiles: P) -> float:
    """Predicted cycles."""
    return rules.predicted_cycles(tiles, pieces_of(*parts(case)), H100, {})
