"""ATen's tensors of zeros without memory, which forward mode makes (`torch.func.jvp`)."""

from __future__ import annotations

import pytest
import torch
from lowered import capture, check, lowered

from torchweld.capture.lower import lower
from torchweld.core.errors import NotLowered
from torchweld.core.options import Options


def zero() -> torch.Tensor:
    return torch.ops.aten._efficientzerotensor.default([5, 7], dtype=torch.float32, device="cpu")


def test_one_that_a_graph_makes_is_a_number():
    """A call's result would be read at a null pointer."""

    def function(x):
        made = zero()
        assert made._is_zerotensor()
        return x.sin().add(torch.zeros_like(x).copy_(made))

    captured = capture(function, torch.randn(5, 7))
    assert "_efficientzerotensor" in str(captured.module.graph)
    check(function, torch.randn(5, 7))
    assert lowered(function, torch.randn(5, 7)).graph.nodes


def test_one_that_is_given_is_refused():
    captured = capture(lambda x: x.sin(), torch.randn(5, 7))
    (placeholder,) = (n for n in captured.module.graph.nodes if n.op == "placeholder")
    placeholder.meta["val"] = zero()
    with pytest.raises(NotLowered, match="not in memory"):
        lower(captured, Options())
