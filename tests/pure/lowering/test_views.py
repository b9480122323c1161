"""How windows on buffers are told to libraries."""

from __future__ import annotations

import pytest

from torchweld.core import dtypes
from torchweld.ir.nodes import Buffer
from torchweld.ir.views import as_view, contiguous_strides, whole


@pytest.mark.parametrize("shape", [(1, 7), (7, 1), (1, 3, 5, 5), (4, 1, 2, 1), (1,), ()])
def test_strides_of_single_elements_are_a_dense_tensors(shape):
    """A library may look at them: a row with strides (1, 1) is a slow column to it."""
    buffer = Buffer("x", shape, dtypes.f32, contiguous_strides(shape))
    assert as_view(whole(buffer), buffer).strides == contiguous_strides(shape)
