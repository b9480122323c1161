"""What torchweld made of a model: fused groups, library calls, refusals with reasons, what went
wrong.

Read from the records that the pipeline leaves (`torchweld.records`), never from timings.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import asdict, dataclass

from torchweld.api import records
from torchweld.ir.nodes import Comp, Extern, Origin
from torchweld.plan.decisions import Fusion, RefusalRecord
from torchweld.report.data import GraphPart, Group, Refused
from torchweld.report.units import bytes_text
from torchweld.runtime.record import Note


@dataclass(frozen=True)
class Explanation:
    """`str()` is for a terminal; `to_dict()` for a program."""

    graphs: tuple[GraphPart, ...]

    def to_dict(self) -> dict:
        return {"graphs": [asdict(part) for part in self.graphs]}

    def __str__(self) -> str:
        if not self.graphs:
            return "Nothing is compiled yet: call the fused model once, then explain it."
        return "\n\n".join(_graph_text(part) for part in self.graphs)


def explain(fused=None) -> Explanation:
    """What was fused, what not and why, for each graph compiled for `fused` so far; without an
    argument, for the last graphs compiled in this process (torch.compile(backend="torchweld"))."""
    return Explanation(tuple(graph_part(record) for record in records(fused)))


def graph_part(record) -> GraphPart:
    """A pipeline record as a part of a report."""
    fusions = [d for d in record.decisions if isinstance(d, Fusion)]
    fused_kernels = {fusion.kernel for fusion in fusions}
    comps = [node for node in record.graph.nodes if isinstance(node, Comp)]
    return GraphPart(
        name=record.name,
        kind=record.kind,
        groups=_groups(fusions),
        unfused=sum(comp.name not in fused_kernels for comp in comps),
        library_calls=_library_calls(record.graph.nodes),
        refusals=_refusals(d for d in record.decisions if isinstance(d, RefusalRecord)),
        events=_events(record.events),
        seconds=dict(record.timings_s),
    )


def _groups(fusions: list[Fusion]) -> list[Group]:
    """Kernels that hold the same operations are one group, repeated."""
    alike: dict[tuple, list[Fusion]] = defaultdict(list)
    for fusion in fusions:
        key = tuple(o.op for o in fusion.origins), fusion.bytes_before, fusion.bytes_after
        alike[key].append(fusion)
    groups = [
        Group(
            kernel=same[0].kernel,
            operations=[_origin_text(origin) for origin in same[0].origins],
            bytes_before=same[0].bytes_before,
            bytes_after=same[0].bytes_after,
            saved_us=same[0].saved_us,
            repeats=len(same),
        )
        for same in alike.values()
    ]
    return sorted(groups, key=lambda g: -g.saved_us * g.repeats)


def _library_calls(nodes) -> dict[str, int]:
    return dict(Counter(n.target for n in nodes if isinstance(n, Extern)).most_common())


def _refusals(records_) -> list[Refused]:
    by_reason: dict[str, list[RefusalRecord]] = defaultdict(list)
    for record in records_:
        by_reason[record.reason.value].append(record)
    found = [
        Refused(reason, len(same), sum(r.bytes_at_stake for r in same), _largest(same))
        for reason, same in by_reason.items()
    ]
    return sorted(found, key=lambda r: -r.bytes_at_stake)


def _largest(same: list[RefusalRecord]) -> str:
    most = max(same, key=lambda r: r.bytes_at_stake)
    return f"{most.producer} -> {most.consumer}" + (f": {most.evidence}" if most.evidence else "")


def _origin_text(origin: Origin) -> str:
    place = origin.module or origin.source
    return f"{short_name(origin.op)} @ {place}" if place else short_name(origin.op)


def short_name(op: str) -> str:
    """aten.add.Tensor -> add; torchweld.linear stays."""
    return op.removeprefix("aten.").split(".")[0] if op.startswith("aten.") else op


def _events(notes: list[Note]) -> list[str]:
    """Notes of the same kind and text are one line."""
    alike: dict[tuple[str, str], list[Note]] = defaultdict(list)
    for note in notes:
        alike[note.kind, note.text].append(note)
    return [_event_text(same) for same in alike.values()]


def _event_text(same: list[Note]) -> str:
    first, amount = same[0], sum(note.amount for note in same)
    total = f" ({_amount_text(amount, first.unit)})" if amount else ""
    what = first.subject if len(same) == 1 else f"{len(same)} times, such as {first.subject}"
    return f"{first.kind}: {what}: {first.text}{total}"


def _amount_text(amount: float, unit: str) -> str:
    return bytes_text(int(amount)) if unit in ("B", "bytes") else f"{amount:.3g} {unit}".strip()


def _graph_text(part: GraphPart) -> str:
    lines = [f"{part.name} ({part.kind}): {len(part.groups)} kinds of fused kernel"]
    for group in part.groups:
        lines.append(
            f"  {group.repeats} x {group.kernel}: {bytes_text(group.bytes_before)} -> "
            f"{bytes_text(group.bytes_after)}, {group.saved_us:.1f} us saved (predicted)"
        )
        lines.append(f"      {', '.join(group.operations)}")
    lines.append(f"  {part.unfused} kernels of one operation")
    lines += [f"  {count} x library call {name}" for name, count in part.library_calls.items()]
    for refused in part.refusals:
        lines.append(
            f"  not fused, {refused.reason}: {refused.pairs} pairs, "
            f"{bytes_text(refused.bytes_at_stake)} at stake, such as {refused.example}"
        )
    return "\n".join(lines + [f"  {event}" for event in part.events])
