"""The kernel that moves parts of a product of odd rows: it compiles without a GPU and does not
spill, and in Triton's interpreter the parts end where they belong."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")

from forked import Forked
from torchweld.runtime.odd_rows import move_source, product_in_parts
from torchweld.runtime.triton_compile import compile_source, jit_function, resources


def move(part, last, target):
    rows, columns = target.shape
    source = move_source(part.stride(0), part.shape[1], columns)
    constants = dict(source.constants)
    grid = -(-columns // constants["BLOCK"]), rows, 1
    given = [t.view(torch.int16) for t in (part, last, target)]
    jit_function(source)[grid](*given, **constants)


def error_of_parts(tell) -> None:
    torch.manual_seed(0)
    a, b = torch.randn(700, 16).bfloat16(), torch.randn(2051, 16).bfloat16().t()
    wanted = a.double() @ b.double()
    tell(float((product_in_parts(a, b, move) - wanted).norm() / wanted.norm()))


@pytest.mark.parametrize("arch", [80, 90])
def test_it_compiles(arch):
    found = resources(compile_source(move_source(50304, 50256, 50257), arch))
    assert found.spill_bytes == 0 and found.wide_loads > 0


def test_parts_end_where_they_belong():
    (error,) = Forked(error_of_parts, TRITON_INTERPRET="1").rest()
    assert error < 3e-3
