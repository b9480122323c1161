"""The rates of generated C++ kernels: one of each kind, made and run as the pipeline would."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

from torchweld.core.options import Options
from torchweld.ir.nodes import Comp
from torchweld.observe.measure.recorder import record
from torchweld.observe.predict.lowered import captured
from torchweld.observe.predict.work import node_work
from torchweld.pipeline import compile_graph


def generated_rates(options: Options, best_s: Callable) -> dict[str, float]:
    """"generated product float32" -> flops a second, on a CPU; for plain kernels in the units of
    the cost model. What stays with the library has none. `best_s(call)`: the seconds of a call."""
    x, n = torch.randn(512, 768), 56
    image, windows = torch.randn(1, 64, n, n), torch.randn(64, 64, 3, 3)
    problems = (
        (F.gelu, (torch.randn(128, 768),)),
        (torch.mm, (x, torch.randn(3072, 768).T)),
        (lambda i, w: F.conv2d(i, w, padding=1), (image, windows)),
    )
    found = {}
    for function, given in problems:
        (call,) = record(lambda f=function, g=given: f(*g), {}).calls
        program = compile_graph(captured(call, "cpu"), options)
        graph = program.record.graph
        if len(graph.nodes) == 1 and isinstance(graph.nodes[0], Comp):
            work = node_work(graph.nodes[0], graph)
            seconds = best_s(lambda p=program, g=given: p(list(g)))
            found[f"{work.operator} {work.dtype}"] = work.flops / seconds
    return found
