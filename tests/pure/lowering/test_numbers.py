"""Numbers that are made of numbers, on the CPU, are known at the capture."""

from __future__ import annotations

import torch
from lowered import capture, check, comps, lowered

from torchweld.capture.lower import lower

X = torch.randn(3, 5)


def scaled(x):
    """As the attention of DeBERTa is."""
    scale = torch.sqrt(torch.tensor(7, dtype=torch.float) * 3)
    return x / scale.to(x.dtype), scale


def test_a_scale_made_of_constants_is_a_number():
    result = lowered(lambda x: scaled(x)[0], X.bfloat16())
    (comp,) = comps(result)
    assert len(comp.reads) == 1 and not result.constants
    check(scaled, X)


def test_what_is_random_or_an_input_is_no_number():
    noise = lowered(lambda x: x * torch.bernoulli(torch.tensor(0.5)), X)
    assert len(noise.graph.nodes) > 1
    read = lowered(lambda x, s: x * s.sqrt(), X, torch.tensor(2.0))
    assert len(set().union(*(comp.reads for comp in comps(read)))) > 1


def test_a_kernel_of_a_gpu_takes_such_a_number():
    """All but the constant moved there."""
    captured = capture(scaled, X)
    module = captured.module
    for node in module.graph.nodes:
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor) and value.dim():
            with value.fake_mode:
                node.meta["val"] = torch.empty_like(value, device="cuda")
    nodes = lower(captured).graph.nodes
    assert [type(n).__name__ for n in nodes] == ["Comp", "Comp"]  # x / scale, and scale itself
