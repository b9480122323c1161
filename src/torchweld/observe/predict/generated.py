"""The rates of generated C++ kernels: one of each kind, made and run as the pipeline would."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
import torch.nn.functional as F

from torchweld.core.options import Options
from torchweld.ir.nodes import Extern, Graph
from torchweld.observe.measure.recorder import record
from torchweld.observe.predict.lowered import lowered
from torchweld.observe.predict.work import node_work
from torchweld.passes.table import PASSES, Context
from torchweld.plan.decisions import Plan
from torchweld.runtime.load import load
from torchweld.targets.find import target_of
from torchweld.targets.rates import favouring
from torchweld.templates.generate import generate_all, kernels_of


def generated_rates(options: Options, best_s: Callable) -> dict[str, float]:
    """"generated product float32" -> flops a second, on a CPU; for plain kernels in the units of
    the cost model. `best_s(call)`: the seconds of a call."""
    x, n = torch.randn(512, 768), 56
    image, windows = torch.randn(1, 64, n, n), torch.randn(64, 64, 3, 3)
    problems = (
        (F.gelu, (torch.randn(128, 768),)),
        (torch.mm, (x, torch.randn(3072, 768).T)),
        (lambda i, w: F.conv2d(i, w, padding=1), (image, windows)),
    )
    found = {}
    for function, given in problems:
        graph = _planned(function, given, options)
        if graph is not None:
            program = load(graph, generate_all(kernels_of(graph, target_of("cpu"))), {}, options)
            (work,) = (node_work(node, graph) for node in graph.nodes)
            seconds = best_s(lambda p=program, g=given: p(list(g)))
            found[f"{work.operator} {work.dtype}"] = work.flops / seconds
    return found


def _planned(function: Callable, given: tuple, options: Options) -> Graph | None:
    """The call as one generated kernel, None if it stays with the library."""
    (call,) = record(lambda: function(*given), {}).calls
    target = replace(target_of("cpu"), rates=favouring("own"))
    made, context = Plan(lowered(call, "cpu"), ()), Context(target, options)
    for name in target.passes:
        made = PASSES[name].run(made, context)
    graph = made.graph
    alone = len(graph.nodes) == 1 and not isinstance(graph.nodes[0], Extern)
    return graph if alone else None
