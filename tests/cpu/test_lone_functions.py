"""A function alone in a kernel is ATen's call; with anything beside it, it is a kernel."""

from __future__ import annotations

import pytest
import torch

import torchweld
from torchweld.core import dtypes
from torchweld.ir.nodes import Buffer, Comp, Graph
from torchweld.ir.parser import parse_comp
from torchweld.passes.lone_functions import FUNCTIONS, lone_functions_as_calls


def _kernels(fused) -> int:
    return sum(len(b.sources) for r in torchweld.api.records(fused) for b in r.bundles.values())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_the_result_is_eagers(name, dtype):
    torch._dynamo.reset()
    function = getattr(torch, name)
    fused = torchweld.fuse(lambda x: function(x))
    x = torch.randn(7, 33, dtype=dtype)
    x[0, :4] = torch.tensor([torch.nan, torch.inf, -torch.inf, -0.0])
    torch.testing.assert_close(fused(x), function(x), rtol=0, atol=0, equal_nan=True)
    assert _kernels(fused) == 0


CASES = {
    "more than the function": (lambda x: torch.atan(x) * 2, lambda: torch.randn(5, 9), 1),
    "another layout": (lambda x: torch.atan(x.t()), lambda: torch.randn(5, 9), 1),
    "a part": (lambda x: torch.atan(x[1:, ::2]), lambda: torch.randn(5, 9), 1),
    "one row for all": (lambda x: torch.atan(x.expand(4, 9)), lambda: torch.randn(1, 9), 1),
    "bfloat16": (torch.atan, lambda: torch.randn(5, 9).bfloat16(), 1),
    "read again": (lambda x: (torch.exp(x), torch.exp(x).sum(0)), lambda: torch.randn(5, 9), None),
    "of a number": (torch.atan, lambda: torch.randn(()), None),
    "of nothing": (torch.atan, lambda: torch.randn(0, 3), None),
    "of a temporary": (lambda x: torch.atan(torch.cumsum(x, 0)), lambda: torch.randn(5, 9), None),
}


@pytest.mark.parametrize("name", CASES)
def test_what_is_more_stays_right(name):
    torch._dynamo.reset()
    model, make, kernels = CASES[name]
    fused, x = torchweld.fuse(model), make()
    torch.testing.assert_close(fused(x), model(x), rtol=2e-2 if x.dtype == torch.bfloat16 else 2e-6,
                               atol=1e-6)  # fmt: skip
    assert kernels is None or _kernels(fused) == kernels


@pytest.mark.parametrize("again", [False, True])
def test_who_computes_it_again_has_the_same_bits(again):
    """The library's exponential need not equal a kernel's, which is compared with it."""
    alone = parse_comp("comp y [i:9] {\n%0 = load x[i] : f32\n%1 = exp %0 : f32\nstore y[i] %1\n}")
    given = "exp %0" if again else "sin %0"
    other = parse_comp(f"""comp z [i:9] {{
      %0 = load x[i] : f32
      %1 = {given} : f32
      %2 = load y[i] : f32
      %3 = eq %1 %2 : b1
      store z[i] %3
    }}""")
    kinds = {"x": dtypes.f32, "y": dtypes.f32, "z": dtypes.b1}
    buffers = {n: Buffer(n, (9,), kind, (1,), "cpu") for n, kind in kinds.items()}
    graph = Graph("g", (), buffers, (alone, other), ("x",), (buffers["z"].view,))
    first, _ = lone_functions_as_calls(graph).nodes
    assert isinstance(first, Comp) == again


SPECIAL = {
    "erfc": lambda x: torch.erf(x) * torch.erfc(x) * 2,
    "lgamma": lambda x: torch.lgamma(x.abs() + 1) - x,
    "erfinv": lambda x: torch.erfinv(x.tanh()) * 2,
    "nextafter": lambda x: torch.nextafter(x, x * 2) * 2,
    "hypot": lambda x: torch.hypot(x, x.flip(0)) * 2,
    "signbit": lambda x: torch.where(torch.signbit(x), x * 2, x),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", SPECIAL)
def test_special_functions_in_a_chain(name, dtype):
    torch._dynamo.reset()
    x = torch.randn(64, dtype=dtype) * 4
    x[:9] = torch.tensor([torch.nan, torch.inf, -torch.inf, 0.0, -0.0, 1e-40, -1e-40, 1e30, 9.0])
    fused = torchweld.fuse(lambda x: SPECIAL[name](x))
    torch.testing.assert_close(fused(x), SPECIAL[name](x), rtol=1e-6, atol=0, equal_nan=True)


def test_what_is_written_in_place():
    torch._dynamo.reset()
    x = torch.rand(6, 10)
    expected = x.exp()
    torchweld.fuse(lambda x: x.exp_())(x)
    torch.testing.assert_close(x, expected, rtol=1e-6, atol=0)


def test_gradients_and_other_sizes():
    torch._dynamo.reset()
    fused = torchweld.fuse(lambda x: torch.tanh(x), dynamic=True)
    for rows in (3, 5, 8):
        x, y = (torch.linspace(-3, 3, 4 * rows).view(rows, 4).requires_grad_() for _ in range(2))
        fused(x).square().sum().backward()
        y.tanh().square().sum().backward()
        torch.testing.assert_close(x.grad, y.grad)
