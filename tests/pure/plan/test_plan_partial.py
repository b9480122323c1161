"""Buffers that a Comp writes in part: what is read of them is not what it stores."""

from __future__ import annotations

import pytest
from plan_programs import kernels, planned, program

from torchweld.ir.affine import Affine, axis, constant
from torchweld.ir.nodes import Ref
from torchweld.ir.size import symbol
from torchweld.plan.refusals import Reason
from torchweld.plan.unify import writes_all
from torchweld.targets.find import target_of

S = symbol("s0")
EXTENTS = {"h": 12, "d": 64, "n": 768, "one": 1, "r": S}
CPU = target_of("cpu")


@pytest.mark.parametrize(
    ("index", "shape", "whole"),
    [
        ((axis("n"),), (768,), True),
        ((axis("h") * 64 + axis("d"),), (768,), True),
        ((axis("r") * 64 + axis("d"), axis("h")), (64 * S, 12), True),
        ((axis("n") * -1 + 767,), (768,), True),
        ((axis("h") * 64 + axis("d") * -1 + 63,), (768,), True),
        ((axis("n"), axis("one")), (768, 1), True),
        ((constant(0), axis("n")), (1, 768), True),
        ((), (), True),
        ((constant(0),), (4,), False),
        ((constant(3),), (4,), False),
        ((axis("one"),), (4,), False),
        ((axis("n"),), (769,), False),
        ((axis("n") + 1,), (769,), False),
        ((axis("h") * 2,), (24,), False),
        ((axis("n") * -1 + 768,), (769,), False),
        ((axis("h"), axis("h")), (12, 12), False),
        ((axis("n"),), (S,), False),
        ((Ref(0),), (1,), False),
    ],
)
def test_which_stores_write_all(index: tuple[Affine, ...], shape, whole):
    assert writes_all(index, EXTENTS, shape) == whole


PLACED = """
    comp put {axes} {{
      %0 = load x[{read}] : f32
      %1 = exp %0 : f32
      store t[{place}] %1 init 0.0
    }}
    comp use [i:4] {{
      %0 = load t[i] : f32
      %1 = load w[i] : f32
      %2 = mul %0 %1 : f32
      store y[i] %2
    }}
"""


@pytest.mark.parametrize(
    ("axes", "read", "place"),
    [("[]", "0", "0"), ("[]", "2", "3"), ("[k:1]", "k", "k"), ("[k:3]", "k", "k"),
     ("[k:2]", "k", "k+1")],
)  # fmt: skip
def test_what_is_left_of_a_filled_buffer_is_read_from_memory(axes, read, place):
    text = PLACED.format(axes=axes, read=read, place=place)
    graph = program("x f32 4; w f32 4; t f32 4; y f32 4", "x w", text, "y")
    result = planned(graph, device=CPU)
    assert len(kernels(result)) == 2
    assert Reason.PARTIAL_WRITE in {r.reason for r in result.refusals}


@pytest.mark.parametrize(("axes", "place"), [("[k:4]", "k"), ("[k:4]", "-1*k+3")])
def test_a_filled_buffer_that_is_all_written_fuses(axes, place):
    text = PLACED.format(axes=axes, read="k", place=place)
    graph = program("x f32 4; w f32 4; t f32 4; y f32 4", "x w", text, "y")
    assert len(kernels(planned(graph, device=CPU))) == 1


def test_a_buffer_whose_copy_is_written_to_is_stored_before():
    """It is copied whole before the kernel that adds to it begins."""
    graph = program(
        "x f32 8; at i64 8; t f32 8; y f32 8", "x at",
        """
        comp first [i:8] {
          %0 = load x[i] : f32
          %1 = exp %0 : f32
          store t[i] %1
        }
        comp add_up [i:8] {
          %0 = load at[i] : i64
          %1 = load t[i] : f32
          store.add y[%0] %1 init copy t
        }
        """, "y",
    )  # fmt: skip
    assert len(kernels(planned(graph, device=CPU))) == 2
