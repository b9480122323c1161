"""A pipeline record as a part of a report: fused groups, refusals with reasons, what went wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace

from torchweld.codegen.cpp.headers import common_header
from torchweld.codegen.source import KernelBundle, KernelSource
from torchweld.core.grouped import grouped
from torchweld.core.units import bytes_text
from torchweld.ir.nodes import Comp, Extern, Node, View
from torchweld.observe.record.profile import Place, family
from torchweld.observe.record.report import (
    Apart,
    GraphPart,
    Group,
    Made,
    Refused,
    Saved,
    Source,
)
from torchweld.observe.report.advice import ADVICE, OWN_KERNEL, OWN_KERNEL_ADVICE
from torchweld.plan.decisions import Choice, Fusion, RefusalRecord
from torchweld.plan.refusals import Reason
from torchweld.runtime.record import Note
from torchweld.targets.find import target_of
from torchweld.templates.pointwise_reduce.price import bytes_of

MOST_APART = 12  # pairs named for one reason; the figures count all


def graph_part(record) -> GraphPart:
    """What became of one graph. Errors of its kernels are not measured here."""
    fusions = [d for d in record.decisions if isinstance(d, Fusion)]
    refused = [d for d in record.decisions if isinstance(d, RefusalRecord)]
    fused_kernels = {fusion.kernel for fusion in fusions}
    comps = [node for node in record.graph.nodes if isinstance(node, Comp)]
    return GraphPart(
        name=record.name,
        kind=record.kind,
        groups=_groups(fusions, record.bundles),
        kernels=_kernels(record),
        unfused=sum(comp.name not in fused_kernels for comp in comps),
        library_calls=_library_calls(record.graph.nodes),
        refusals=_refusals(record, refused),
        events=_events(record.events),
        seconds=dict(record.timings_s),
        saved=_saved(record),
    )


def _saved(record) -> list[Saved]:
    """Inputs and parameters that the backward reads are none: they are there in any case."""
    graph = record.graph
    makers = {name: node for node in graph.nodes for name in node.writes}
    outputs = [graph.outputs[at] for at in sorted(record.kept)]
    kept = dict.fromkeys(v.buffer for v in outputs if isinstance(v, View) and v.buffer in makers)
    each = [Saved(_end(b, makers[b], -1), bytes_of(graph.buffers[b], graph.hints)) for b in kept]
    alike = grouped(each, lambda s: (s.operation.op, s.operation.source, s.bytes)).values()
    found = [replace(same[0], count=len(same)) for same in alike]
    return sorted(found, key=lambda s: -s.bytes * s.count)


def _groups(fusions: list[Fusion], bundles: Mapping[str, KernelBundle]) -> list[Group]:
    """Kernels that hold the same operations are one group, repeated."""
    alike = grouped(
        fusions, lambda f: (tuple(o.op for o in f.origins), f.bytes_before, f.bytes_after))
    groups = [_group(same, bundles.get(same[0].kernel)) for same in alike.values()]
    return sorted(groups, key=lambda g: -g.saved_us * g.repeats)


def _group(same: list[Fusion], bundle: KernelBundle | None) -> Group:
    first = same[0]
    return Group(
        kernel=first.kernel,
        operations=[Place.of(origin) for origin in first.origins],
        bytes_before=first.bytes_before,
        bytes_after=first.bytes_after,
        saved_us=first.saved_us,
        repeats=len(same),
        sources=[_source(source) for source in (bundle.sources if bundle else ())],
    )


def _kernels(record) -> list[Made]:
    """Those made in the same way are one, the longest first."""
    choices = [d for d in record.decisions if isinstance(d, Choice)]
    alike = grouped(choices, lambda c: (family(c.kernel), replace(c, kernel="")))
    made = [_made([c.kernel for c in same], same[0], record.bundles) for same in alike.values()]
    return sorted(made, key=lambda m: -m.predicted_us * len(m.kernels))


def _made(names: list[str], choice: Choice, bundles: Mapping[str, KernelBundle]) -> Made:
    bundle = bundles.get(names[0])
    functions = [source.name for source in bundle.sources] if bundle else []
    return Made(
        names, functions, choice.template, choice.schedule, choice.predicted_us, choice.reason)


def _source(source: KernelSource) -> Source:
    shared = common_header() if source.language == "cpp" else ""
    return Source(source.language, source.name, source.text.removeprefix(shared).strip() + "\n")


def _library_calls(nodes: Iterable[Node]) -> dict[str, int]:
    return dict(Counter(n.target for n in nodes if isinstance(n, Extern)).most_common())


def _refusals(record, refused: list[RefusalRecord]) -> list[Refused]:
    nodes = {node.name: node for node in record.graph.nodes}
    rate = target_of(record.device).dram_bytes_per_s
    alike = grouped(refused, lambda r: _why(r, nodes))
    found = [_refused(*why, same, nodes, rate) for why, same in alike.items()]
    return sorted(found, key=lambda r: -r.bytes_at_stake)


def _why(record: RefusalRecord, nodes: Mapping[str, Node]) -> tuple[str, str]:
    """The reason as it is after the plan, and the advice."""
    ends = nodes.get(record.producer), nodes.get(record.consumer)
    if record.reason is Reason.EXTERN and all(isinstance(end, Comp) for end in ends):
        return OWN_KERNEL, OWN_KERNEL_ADVICE
    return record.reason.value, ADVICE[record.reason]


def _refused(
    reason: str, advice: str, same: list[RefusalRecord], nodes: Mapping[str, Node], rate: float
) -> Refused:
    total = sum(r.bytes_at_stake for r in same)
    return Refused(
        reason=reason,
        pairs=len(same),
        bytes_at_stake=total,
        example=_example(max(same, key=lambda r: r.bytes_at_stake)),
        cost_us=2 * total / rate * 1e6,
        advice=advice,
        apart=_apart(same, nodes),
    )


def _example(record: RefusalRecord) -> str:
    pair = f"{record.producer} -> {record.consumer}"
    return f"{pair}: {record.evidence}" if record.evidence else pair


def _apart(same: list[RefusalRecord], nodes: Mapping[str, Node]) -> list[Apart]:
    """Pairs between the same lines, the most bytes first."""

    def ends(record: RefusalRecord) -> tuple[Place, Place]:
        return (
            _end(record.producer, nodes.get(record.producer), -1),
            _end(record.consumer, nodes.get(record.consumer), 0),
        )

    def looks(record: RefusalRecord) -> tuple:
        return (*((o.op, o.source) for o in ends(record)), record.evidence, record.bytes_at_stake)

    found = [
        Apart(*ends(alike[0]), alike[0].evidence, len(alike), sum(r.bytes_at_stake for r in alike))
        for alike in grouped(same, looks).values()
    ]
    return sorted(found, key=lambda a: -a.bytes_at_stake)[:MOST_APART]


def _end(name: str, node: Node | None, side: int) -> Place:
    """A node by one of its operations, or by its name where no stage after the plan kept it."""
    return Place.of(node.origins[side]) if node and node.origins else Place(name)


def _events(notes: list[Note]) -> list[str]:
    """Notes of the same kind and text are one line."""
    return [_event_text(same) for same in grouped(notes, lambda n: (n.kind, n.text)).values()]


def _event_text(same: list[Note]) -> str:
    first, amount = same[0], sum(note.amount for note in same)
    total = f" ({_amount_text(amount, first.unit)})" if amount else ""
    what = first.subject if len(same) == 1 else f"{len(same)} times, such as {first.subject}"
    return f"{first.kind}: {what}: {first.text}{total}"


def _amount_text(amount: float, unit: str) -> str:
    return bytes_text(int(amount)) if unit in ("B", "bytes") else f"{amount:.3g} {unit}".strip()
