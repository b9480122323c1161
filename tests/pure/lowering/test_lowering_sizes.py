"""One lowering for all sizes: symbols, derived symbols, and shapes whose factors do not show."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from lowered import assert_close, capture, externs, lowered, run, tensors, wide

from torchweld.capture.lower import lower
from torchweld.core.errors import NotLowered

FUNCTIONS = {
    "pointwise": lambda x, w: [x + w, x.exp() * x.shape[0]],
    "norms": lambda x, w: [F.layer_norm(x, w.shape, w), x.softmax(-1), x.var(0), x.mean()],
    "views": lambda x, w: [x.t() * 2, x.reshape(-1) + 1, x[1:, :-1] + 1, x[-1] * 2, x.flip(0) + x],
    "merge": lambda x, w: (x[:, None, :] * w).reshape(x.shape[0], -1).sum(0),
    "cat": lambda x, w: [torch.cat([x, x], 0), torch.cat([x, w[None]], 0), torch.stack([x, x], 1)],
    "halves": lambda x, w: [x[: x.shape[0] // 2] + 1, x[x.shape[0] // 2 :] * 2],
    "create": lambda x, w: [torch.arange(x.shape[0]), torch.zeros(x.shape[0] * 2), x.tril()],
    "pad": lambda x, w: [F.pad(x, (1, 2)), F.pad(x, (x.shape[0], 0)), torch.full_like(x, 2.0)],
    "gather": lambda x, w: [x[torch.arange(x.shape[0] - 1)], x.argmax(1), x.cumsum(0)],
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_other_sizes(name):
    torch.manual_seed(0)
    function = FUNCTIONS[name]
    result = lowered(function, torch.randn(6, 5), torch.randn(5), mode="symbolic")
    assert externs(result) == []
    for rows, columns in ((6, 5), (7, 3), (16, 17)):
        args = torch.randn(rows, columns), torch.randn(columns)
        found = run(result, args, exact=False)
        for got, want, precise in zip(
            found, tensors(function(*args)), tensors(function(*map(wide, args))), strict=True
        ):
            assert_close(got, want, wide(precise) if want.is_floating_point() else None)


def test_sizes_that_are_no_polynomials_are_symbols():
    result = lowered(FUNCTIONS["halves"], torch.randn(6, 5), torch.randn(5), mode="symbolic")
    derived = [s for s in result.graph.symbols if s.source[0] == "floor_div"]
    assert len(derived) == 1 and derived[0].hint == 3


def test_an_unused_input_is_none():
    result = lowered(lambda x, y: x + 1, torch.randn(3), torch.randn(3))
    assert result.graph.inputs[1] is None


def test_sizes_that_depend_on_data_are_refused():
    with pytest.raises(NotLowered, match="depend"):
        lower(capture(lambda x: x.nonzero() + 1, torch.randn(4), mode="symbolic"))


def test_constants_are_inputs():
    table = torch.randn(4, 3)
    result = lowered(lambda x: x + table + torch.tensor(2.0), torch.randn(4, 3))
    assert list(result.constants) == list(result.graph.inputs[1:])
    assert len(result.constants) == 1  # the scalar is part of the kernel
    x = torch.randn(4, 3)
    assert torch.equal(run(result, [x], exact=False)[0], x + table + 2)
