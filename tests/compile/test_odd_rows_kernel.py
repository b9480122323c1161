"""The kernel that moves parts of a product of odd rows compiles without a GPU, and does not
spill."""

from __future__ import annotations

import pytest

pytest.importorskip("triton")

from torchweld.runtime.odd_rows import move_source
from torchweld.runtime.triton_compile import compile_source, resources


@pytest.mark.parametrize("arch", [80, 90])
def test_it_compiles(arch):
    found = resources(compile_source(move_source(50304, 50256, 50257), arch))
    assert found.spill_bytes == 0 and found.wide_loads > 0
