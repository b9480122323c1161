"""codegen/scalars.py: every scalar operation has a spelling that uses all its arguments."""

import pytest

from torchweld.codegen.scalars import CPP
from torchweld.ir import scalar


def test_every_operation_has_a_row():
    assert set(CPP) == set(scalar.TABLE)


@pytest.mark.parametrize(("name", "text"), CPP.items())
def test_spellings_use_every_argument(name: str, text: str):
    args = [f"{{{k}}}" for k in range(scalar.TABLE[name].arity)]
    assert all(a in text for a in args)
