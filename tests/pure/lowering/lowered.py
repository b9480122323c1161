"""Lowering a function and comparing the meaning of its IR with eager."""

from __future__ import annotations

import operator

import torch
from torch._subclasses import FakeTensorMode
from torch.func import functionalize
from torch.fx.experimental.proxy_tensor import make_fx

from torchweld.capture.captured import Captured
from torchweld.capture.lower import Lowered, lower
from torchweld.core.options import Options
from torchweld.ir.check import check_graph
from torchweld.ir.frame import frame_of
from torchweld.ir.index_check import CHECK_INDEX
from torchweld.ir.interpret import run_graph
from torchweld.ir.nodes import Comp, Extern


def capture(function, *args, mode: str = "fake") -> Captured:
    """The function takes and gives tensors; a single result counts as one of a list."""

    def listed(flat):
        return tensors(function(*flat))

    module = make_fx(functionalize(listed), tracing_mode=mode, _allow_non_fake_inputs=True)(
        list(args)
    )
    return Captured(module, "test", "inference")


def lowered(function, *args, mode: str = "fake", **options) -> Lowered:
    result = lower(capture(function, *args, mode=mode), Options(**options))
    check_graph(result.graph)
    assert all(frame_of(comp) for comp in comps(result))  # each is one kernel as it stands
    return result


def externs(result: Lowered) -> list[str]:
    """Targets of the library calls, checks of indices aside."""
    targets = [n.target for n in result.graph.nodes if isinstance(n, Extern)]
    return [t for t in targets if t != CHECK_INDEX]


def comps(result: Lowered) -> list[Comp]:
    return [n for n in result.graph.nodes if isinstance(n, Comp)]


def run(result: Lowered, args, exact: bool) -> list:
    return run_graph(result.graph, [*args, *result.constants.values()], exact=exact)


def tensors(value) -> list:
    return [v for v in (value if isinstance(value, (tuple, list)) else [value])]


def wide(value):
    floating = isinstance(value, torch.Tensor) and value.is_floating_point()
    return value.double() if floating else value


def resolution(dtype: torch.dtype) -> float:
    return torch.finfo(dtype).eps if dtype.is_floating_point else 0.0


def assert_close(found, eager, precise=None, ulps: float = 8.0) -> None:
    """`found` is as near to `precise` (float64) as eager is, with a floor of `ulps` of its dtype
    at its scale."""
    assert found.shape == eager.shape and found.dtype == eager.dtype, (found.shape, found.dtype)
    assert found.stride() == eager.stride() or _same_places(found, eager), (
        found.stride(),
        eager.stride(),
    )
    if not eager.is_floating_point():
        assert torch.equal(found, eager)
        return
    reference = wide(eager) if precise is None else precise
    finite = reference.isfinite()
    assert torch.equal(wide(found)[~finite].nan_to_num(), reference[~finite].nan_to_num())
    assert torch.equal(found.isnan(), reference.isnan())
    error = (wide(found) - reference)[finite].abs()
    allowed = 3 * (wide(eager) - reference)[finite].abs()
    scale = reference[finite].abs().amax() if finite.any() else torch.tensor(0.0)
    floor = ulps * resolution(eager.dtype) * torch.maximum(reference[finite].abs(), 0.5 * scale)
    excess = error - torch.maximum(allowed, floor)
    assert not (excess > 0).any(), f"error {error.max():.3g} at scale {scale:.3g}"


def _same_places(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.numel() == 0 or all(
        n == 1 or x == y for n, x, y in zip(a.shape, a.stride(), b.stride())
    )


def check(
    function,
    *args,
    mode: str = "fake",
    all_lowered: bool = True,
    ulps: float = 8.0,
    rounds: bool = False,
) -> Lowered:
    """The IR of `function` means what eager computes: natively against eager and float64, exactly
    against float64."""
    result = lowered(function, *args, mode=mode)
    if all_lowered:
        assert externs(result) == [], externs(result)
    eager = tensors(function(*args))
    precise = tensors(function(*map(wide, args)))
    for found, want, reference in zip(run(result, args, exact=False), eager, precise, strict=True):
        if isinstance(want, torch.Tensor):
            assert_close(found, want, wide(reference) if want.is_floating_point() else None, ulps)
    if rounds:  # a cast to fewer bits, which exact evaluation leaves out
        return result
    for found, reference in zip(run(result, args, exact=True), precise, strict=True):
        if isinstance(reference, torch.Tensor) and reference.is_floating_point():
            torch.testing.assert_close(
                wide(found), reference.double(), rtol=1e-5, atol=1e-6, equal_nan=True
            )
    return result


def check_call(overload, args, reference) -> Lowered:
    """As `check`, of one call of an overload that tracing would take apart; `reference(*args)`
    says what it means."""
    graph = torch.fx.Graph()
    mode = FakeTensorMode()
    places = [
        graph.placeholder(f"arg{k}") if isinstance(a, torch.Tensor) else a
        for k, a in enumerate(args)
    ]
    fakes = [mode.from_tensor(a) if isinstance(a, torch.Tensor) else a for a in args]
    for place, fake in zip(places, fakes):
        if isinstance(fake, torch.Tensor):
            place.meta["val"] = fake
    node = graph.call_function(overload, tuple(places))
    with mode:
        node.meta["val"] = overload(*fakes)
    results = [
        graph.call_function(operator.getitem, (node, k)) for k in range(len(node.meta["val"]))
    ]
    for result, value in zip(results, node.meta["val"]):
        result.meta["val"] = value
    graph.output(results)
    result = lower(Captured(torch.fx.GraphModule({}, graph), "test", "inference"))
    check_graph(result.graph)
    assert externs(result) == []
    given = [a for a in args if isinstance(a, torch.Tensor)]
    precise = reference(*map(wide, args))
    for found, want in zip(run(result, given, exact=False), precise, strict=True):
        assert_close(found, want.to(found.dtype), want.double(), ulps=32)
    return result
