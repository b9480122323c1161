"""codegen/scalars.py: every scalar operation has both spellings, or a reason."""

import pytest

from torchweld.codegen.scalars import TABLE
from torchweld.ir import scalar


def test_every_operation_has_a_row():
    assert set(TABLE) == set(scalar.TABLE)


@pytest.mark.parametrize("row", TABLE.values(), ids=lambda r: r.name)
def test_spellings_use_every_argument_or_say_why_not(row):
    args = [f"{{{k}}}" for k in range(scalar.TABLE[row.name].arity)]
    for text in (row.cpp, row.triton):
        assert text is None and row.reason or text and all(a in text for a in args)
