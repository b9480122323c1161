"""Programs to plan: written as text, with short forms for what repeats."""

from __future__ import annotations

import torch

from torchweld.core import dtypes
from torchweld.core.options import Options
from torchweld.ir.check import check_graph
from torchweld.ir.frame import frame_of
from torchweld.ir.interpret import run_graph
from torchweld.ir.nodes import Comp, Graph
from torchweld.ir.parser import parse_graph
from torchweld.ir.size import evaluate
from torchweld.plan.decisions import Plan
from torchweld.plan.search import plan
from torchweld.targets.find import named_target

H100 = named_target("H100")


def program(buffers: str, inputs: str, body: str, outputs: str, symbols: str = "") -> Graph:
    """A graph of contiguous buffers: "x f32 8 4; w f32 4". `outputs` names whole buffers."""
    declared = [line.split() for line in buffers.split(";") if line.strip()]
    lines = [f"  buffer {n} : {t}[{', '.join(s)}] strides [{_strides(s)}] on cpu"
             for n, t, *s in declared]  # fmt: skip
    shapes = {n: s for n, _, *s in declared}
    results = [f"view({n}, [{', '.join(shapes[n])}], [{_strides(shapes[n])}], 0)"
               for n in outputs.split()]  # fmt: skip
    text = "\n".join([
        "graph g {", *(f"  {s.strip()}" for s in symbols.split(";") if s.strip()), *lines,
        f"  input {', '.join(inputs.split())}", body, f"  output {', '.join(results)}", "}",
    ])  # fmt: skip
    graph = parse_graph(text)
    check_graph(graph)
    return graph


def _strides(shape: list[str]) -> str:
    strides = ["*".join(shape[k + 1 :]) or "1" for k in range(len(shape))]
    if all(s.isdigit() for s in shape):
        strides = [str(eval(s)) for s in strides]
    return ", ".join(strides)


def random_inputs(graph: Graph, seed: int = 0) -> list:
    """Positional inputs that fit, integers small and non-negative."""
    torch.manual_seed(seed)
    sizes = graph.hints
    inputs = []
    for name in graph.inputs:
        layout = graph.buffers.get(name)
        if layout is None:
            inputs.append(next((s.hint for s in graph.symbols if s.source[0] == "int"), None))
            continue
        shape = [evaluate(s, sizes) for s in layout.shape]
        dtype = dtypes.to_torch(layout.dtype)
        if layout.dtype.is_float:
            inputs.append(torch.randn(shape).to(dtype))
        elif layout.dtype.kind == "bool":
            inputs.append(torch.rand(shape) < 0.5)
        else:
            inputs.append(torch.randint(0, 3, shape, dtype=dtype))
    return inputs


def planned(graph: Graph, device=H100, **options) -> Plan:
    """The plan of `graph`, checked: every Comp framed, the meaning kept in float64 and as typed."""
    result = plan(graph, device, Options(**options))
    check_graph(result.graph)
    for node in result.graph.nodes:
        assert not isinstance(node, Comp) or frame_of(node) is not None, node.name
    same_meaning(graph, result.graph)
    return result


def same_meaning(graph: Graph, other: Graph) -> None:
    """Both graphs give the same outputs: closely in float64, to a few roundings as typed."""
    for exact, tolerance in ((True, 1e-9), (False, None)):
        inputs = random_inputs(graph)
        wanted = run_graph(graph, [_copy(i) for i in inputs], exact=exact)
        given = run_graph(other, [_copy(i) for i in inputs], exact=exact)
        for a, b in zip(wanted, given, strict=True):
            if not isinstance(a, torch.Tensor):
                assert a == b
            elif a.is_floating_point():
                near = tolerance or 16 * torch.finfo(a.dtype).eps
                torch.testing.assert_close(b, a, rtol=near, atol=near, equal_nan=True)
            else:
                assert torch.equal(a, b)


def kernels(result: Plan) -> list[Comp]:
    return [n for n in result.graph.nodes if isinstance(n, Comp)]


def _copy(value):
    return value.clone() if isinstance(value, torch.Tensor) else value
