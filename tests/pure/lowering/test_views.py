"""How windows on buffers are told to libraries."""

from __future__ import annotations

import pytest

from torchweld.core import dtypes
from torchweld.ir.nodes import Buffer
from torchweld.ir.size import symbol
from torchweld.ir.views import as_view, contiguous_strides, slice_, whole


@pytest.mark.parametrize("shape", [(1, 7), (7, 1), (1, 3, 5, 5), (4, 1, 2, 1), (1,), ()])
def test_strides_of_single_elements_are_a_dense_tensors(shape):
    """A library may look at them: a row with strides (1, 1) is a slow column to it."""
    buffer = Buffer("x", shape, dtypes.f32, contiguous_strides(shape))
    assert as_view(whole(buffer), buffer).strides == contiguous_strides(shape)


def test_windows_go_forwards():
    """Libraries know no negative strides, whether known or not."""
    for pitch in (5, symbol("s")):
        buffer = Buffer("x", (3, 4), dtypes.f32, (pitch, 1))
        backwards = slice_(whole(buffer), 0, 2, 3, -1)
        assert as_view(backwards, buffer) is None
        assert as_view(slice_(whole(buffer), 0, 0, 2, 1), buffer).strides == (pitch, 1)
