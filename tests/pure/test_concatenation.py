"""templates/gemm/concatenation.py: matrices side by side are recognised, and nothing else is."""

from __future__ import annotations

from dataclasses import replace

import pytest

import product_cases as cases
from torchweld.core import dtypes
from torchweld.ir import affine
from torchweld.ir.access import addressed
from torchweld.ir.contraction import contraction_of, factor
from torchweld.ir.nodes import Const
from torchweld.templates.gemm.concatenation import Piece, parts_of, pieces_of
from triton_cases import Case


def firsts(case: Case) -> list[int]:
    accesses = addressed(case.comp, case.buffers)
    contraction = contraction_of(accesses)
    value = factor(accesses.comp.body, contraction.products[0].right)
    return [p.first for p in parts_of(accesses, contraction, value)]


def pieces(case: Case) -> tuple[Piece, ...]:
    accesses = addressed(case.comp, case.buffers)
    return pieces_of(accesses, contraction_of(accesses))


def heads(queries: int, keys: int) -> Case:
    """Columns of two axes, divided along the outer one."""
    b = cases.Body("bf16", m=16, h=queries, d=64, k=128)
    for name in ("q", "kv"):
        b.declare(name, "hdk")
    b.extents["h"] = queries + keys
    at, bound = b.builder.index(affine.axis("h")), b.builder.const(queries, dtypes.i64)
    low, high = b.op("lt", at, bound), b.op("ge", at, bound)
    d, k = affine.axis("d"), affine.axis("k")
    left = b.builder.load("q", (affine.axis("h"), d, k), b.dtype, low, 0.0)
    right = b.builder.load("kv", (affine.axis("h") + -queries, d, k), b.dtype, high, 0.0)
    x = b.read("x", "mk")
    both = b.builder.widen(b.builder.op("where", low, left, right))
    b.write("y", "mhd", b.dot(x, both))
    return b.case("heads_side_by_side")


@pytest.mark.parametrize("rows", (1, 16))
def test_parts_begin_where_their_columns_do(rows: int):
    assert firsts(cases.side_by_side(rows, (2048, 512, 500), 64)) == [0, 2048, 2560]
    assert firsts(cases.side_by_side(rows, (32, 64), 64)) == [0, 32]


def test_columns_of_two_axes():
    assert firsts(heads(32, 8)) == [0, 2048]


def test_other_factors_have_no_parts():
    assert firsts(cases.linear(16, 32, 32)) == []
    assert firsts(cases.scaled_before(16, 32, 32)) == []


def test_a_guard_that_holds_in_some_columns_only_is_no_part():
    case = cases.side_by_side(16, (32, 64), 64)
    narrowed = [replace(i, value=90) if i == Const(96, dtypes.i64) else i for i in case.comp.body]
    assert narrowed != list(case.comp.body)
    assert firsts(replace(case, comp=replace(case.comp, body=tuple(narrowed)))) == []


def test_matrices_with_other_strides_are_no_parts():
    case = cases.side_by_side(16, (32, 64), 64)
    padded = replace(case.buffers["w1"], strides=(72, 1))
    assert firsts(replace(case, buffers={**case.buffers, "w1": padded})) == []


def test_each_piece_is_a_plain_product_with_its_own_epilogue():
    found = pieces(cases.side_by_side(16, (96, 64, 72), 128))
    assert [p.columns for p in found] == [96, 64, 72]
    for number, piece in enumerate(found):
        assert piece.contraction.plain
        assert set(piece.accesses.comp.reads) == {"x", f"w{number}", f"b{number}"}
        (store,) = piece.accesses.comp.stores
        assert store.buffer == f"y{number}" and store.guard is None


def test_a_product_of_one_matrix_is_one_piece():
    case = cases.bias_residual(16, 32, 32)
    (piece,) = pieces(case)
    assert piece.accesses.comp == addressed(case.comp, case.buffers).comp


def test_columns_of_two_axes_are_cut_along_the_outer_one():
    assert [p.columns for p in pieces(heads(32, 8))] == [2048, 512]
