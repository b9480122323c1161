"""Products that stay the library's calls, with what follows them where the call does that too."""

from __future__ import annotations

from collections.abc import Callable

from torchweld.core.options import Options
from torchweld.ir.nodes import Comp, Extern, Graph
from torchweld.plan.decisions import Plan
from torchweld.plan.products.told import Pair, explained
from torchweld.plan.refusals import Reason, Refusal
from torchweld.plan.taken_in import with_calls
from torchweld.targets.target import Target
from torchweld.templates.gemm.comp import is_product
from torchweld.templates.library import calls

# (call, what follows it, graph) -> why the call does not do that
WhyNot = Callable[[Extern, Comp, Graph], "str | None"]


def gpu_calls(plan: Plan, options: Options, kind: str, table: Target) -> Plan:
    """`plan` with Externs replaced by faster calls of cuBLAS. `kind`: inference, forward or
    backward."""
    made = with_calls(plan, calls.gpu_calls(plan.graph, options, kind), table)
    return _told(made, options, calls.not_with_gelu)


def cpu_calls(plan: Plan, options: Options, table: Target) -> Plan:
    """`plan` with activations moved into the calls of oneDNN before them."""
    made = with_calls(plan, calls.cpu_calls(plan.graph, options), table)
    return _told(made, options, calls.not_in_linear)


def _told(plan: Plan, options: Options, why_not: WhyNot) -> Plan:
    """`plan` with why products that are calls in it do not do what follows them."""
    rounds = "eager numerics round in between" if options.numerics == "eager" else None
    refused: dict[Pair, Refusal] = {}
    for call, reader in _followed(plan.graph):
        why = rounds or why_not(call, reader, plan.graph)
        found = Refusal(Reason.EPILOGUE, why) if why else Refusal(Reason.READERS, call.outputs[0])
        refused[call.name, reader.name] = found
    return explained(plan, refused)


def _followed(graph: Graph) -> list[tuple[Extern, Comp]]:
    """Products that are calls, each with every kernel that reads it."""
    made = {n.outputs[0]: n for n in graph.nodes if is_product(n) or _is_linear(n)}
    comps = [n for n in graph.nodes if isinstance(n, Comp)]
    return [(made[b], c) for c in comps for b in c.reads if b in made]


def _is_linear(node: object) -> bool:
    linear = (calls.LINEAR, calls.PACKED_LINEAR)
    return isinstance(node, Extern) and node.target in linear
