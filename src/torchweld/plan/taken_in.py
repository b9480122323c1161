"""What library calls take in, told as the planner's fusions are.

    before: t = addmm(b, x, w);  comp y = gelu(t), t used nowhere else
    after:  y = linear(x, w, b, "gelu")
"""

from __future__ import annotations

from dataclasses import replace

from torchweld.ir.nodes import Comp, Extern, Graph
from torchweld.plan.decisions import Plan
from torchweld.plan.products.told import Taken, decisions
from torchweld.targets.target import Target
from torchweld.templates.gemm.price import Prices


def with_calls(plan: Plan, graph: Graph, table: Target) -> Plan:
    """`plan` with `graph`, whose library calls may have taken in Comps that followed them; the
    calls' own seconds are in neither side of what is told."""
    left, prices = {node.name for node in graph.nodes}, Prices(plan.graph, table)
    calls = {b: n for n in graph.nodes if isinstance(n, Extern) for b in n.writes}
    taken = []
    for comp in plan.graph.nodes:
        if isinstance(comp, Comp) and comp.name not in left:
            call = calls[comp.writes[0]]
            taken.append(Taken(call, None, (call.name, comp.name), prices.comp_s(comp), 0.0))
    return replace(plan, graph=graph, decisions=decisions(plan, taken, {}, prices))
