"""codegen/triton_scalars.py: every operation of the IR on every kind of argument that it takes."""

from __future__ import annotations

import re

import pytest

from torchweld.codegen import triton_scalars as scalars
from torchweld.core import dtypes
from torchweld.ir.scalar import TABLE

KINDS = {"f": "float", "i": "int", "b": "bool"}
ROWS = [(row, KINDS[k]) for row in TABLE.values() for k in row.kinds]


@pytest.mark.parametrize(("row", "kind"), ROWS, ids=lambda x: getattr(x, "name", x))
@pytest.mark.parametrize("fast", (False, True))
def test_every_operation_is_written_with_all_its_arguments(row, kind: str, fast: bool):
    text = scalars.operation(row.name, kind, fast)
    assert set(re.findall(r"{(\d)}", text)) == {str(k) for k in range(row.arity)}


@pytest.mark.parametrize(
    ("value", "dtype", "text"),
    [
        (-0.0, dtypes.f32, "(-0.0)"),
        (float("-inf"), dtypes.f64, 'float("-inf")'),
        (float("nan"), dtypes.f32, 'float("nan")'),
        (-3, dtypes.i64, "(-3)"),
        (True, dtypes.b1, "1"),
    ],
)
def test_literals(value, dtype, text: str):
    assert scalars.literal(value, dtype) == text


@pytest.mark.parametrize(
    ("source", "target", "text"),
    [
        ("f32", "bf16", "x.to(tl.bfloat16)"),
        ("f64", "bf16", "x.to(tl.float32).to(tl.bfloat16)"),
        ("i64", "f16", "x.to(tl.float32).to(tl.float16)"),
        ("bf16", "f64", "x.to(tl.float32).to(tl.float64)"),
        ("f32", "b1", "(x != 0)"),
        ("f32", "u8", "x.to(tl.int32).to(tl.uint8)"),
        ("b1", "f32", "x.to(tl.float32)"),
    ],
)
def test_casts_take_the_steps_that_torch_takes(source: str, target: str, text: str):
    assert scalars.cast("x", dtypes.BY_NAME[source], dtypes.BY_NAME[target]) == text
