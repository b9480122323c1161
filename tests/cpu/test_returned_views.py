"""Outputs that are views of inputs, of any sizes: their offset and strides are those of eager."""

from __future__ import annotations

import pytest
import torch

from torchweld.exact.programs import make_input


def two_rows(x):
    return x.reshape(2, -1)


def later_part(x, y):
    x.narrow(0, 0, 1).copy_(y[:1])
    return x.flatten()[1:]


def gapped(*shape):
    """With NaN between its elements, which do not begin where its memory does."""
    return make_input(shape, torch.float32, "gaps", "normal", 0)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("function,shapes", [
    (two_rows, [(1, 16)]),
    (two_rows, [(4, 6)]),
    (later_part, [(5, 1), (5, 1)]),
])
def test_they_show_the_input(function, shapes, dynamic):
    eager, fused = ([gapped(*s) for s in shapes] for _ in range(2))
    wanted = function(*eager)
    torch.compiler.reset()
    found = torch.compile(function, backend="torchweld", dynamic=dynamic)(*fused)
    assert torch.equal(found, wanted) and found.stride() == wanted.stride()
    assert found.storage_offset() == wanted.storage_offset()
    shared = wanted.untyped_storage().data_ptr() == eager[0].untyped_storage().data_ptr()
    assert (found.untyped_storage().data_ptr() == fused[0].untyped_storage().data_ptr()) == shared


def row_of_sums(x, y):
    x.addcmul_(y, y)
    return x[1]


def half_of_sums(x, y):
    x.add_(y)
    return x.chunk(2, 1)[1].mT


def in_other_order(x, y):
    x.copy_(y.t().contiguous().t() * 2)
    return x.view(-1)[3:]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("function,made", [
    (row_of_sums, gapped), (half_of_sums, gapped), (in_other_order, torch.zeros),
])
def test_what_is_written_back_may_have_other_strides(function, made):
    """Than the input that it is written to, whose views are returned."""
    torch.compiler.reset()
    fused = torch.compile(function, backend="torchweld", dynamic=True)
    for n in (4, 6, 6):
        eager, x, y = made(n, 5), made(n, 5), torch.randn(n, 5)
        wanted, found = function(eager, y), fused(x, y)
        torch.testing.assert_close(found, wanted)
        torch.testing.assert_close(x, eager)
        assert found.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
        assert (found.stride(), found.storage_offset()) == (
            wanted.stride(), wanted.storage_offset())  # fmt: skip
