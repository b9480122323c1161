"""What torchweld made of a model: fused groups, library calls, refusals with reasons, what went
wrong.

Read from the records that the pipeline leaves (`torchweld.records`), never from timings.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from torchweld.api import records, was_called
from torchweld.core.events import events
from torchweld.core.stages import CompileSeconds
from torchweld.core.units import bytes_text
from torchweld.observe.record.profile import Place
from torchweld.observe.record.report import GraphPart, Group, Made, Refused, Saved
from torchweld.observe.report.parts import graph_part

_MOST_SAVED = 8  # kinds of tensors that are named
NOTHING_YET = "Nothing is compiled yet. Call the fused model once, then call explain again."
NOTHING_FUSED = "Nothing was fused: every call so far ran in eager."


@dataclass(frozen=True)
class Explanation:
    """`str()` is for a terminal, `to_dict()` for a program, `to_html()` for a page that stands
    alone. Notebooks show it by themselves."""

    graphs: tuple[GraphPart, ...]
    without_graphs: str = NOTHING_YET  # why there are none

    def to_dict(self) -> dict:
        """The graphs as plain data: dicts, lists, numbers, strings."""
        return {"graphs": [asdict(part) for part in self.graphs]}

    def to_html(self) -> str:
        """A whole page, as `torchweld report --html` writes, without what is measured."""
        from torchweld.observe.views.page.render import explanation_page

        return explanation_page(self)

    def _repr_html_(self) -> str:
        from torchweld.observe.views.page.render import explanation_fragment

        return explanation_fragment(self)

    def __str__(self) -> str:
        return "\n\n".join(_graph_text(part) for part in self.graphs) or self.without_graphs


def explain(fused: Callable[..., Any] | None = None) -> Explanation:
    """What was fused, what was not, and why, for each graph that was compiled for `fused` so far.
    Times are predictions in us, sizes in bytes. Nothing is run. Without an argument, or for
    torch.compile(backend="torchweld"): the last graphs that were compiled in this process."""
    graphs = tuple(graph_part(record) for record in records(fused))
    return Explanation(graphs, _why_none(fused) if not graphs else "")


def _why_none(fused) -> str:
    if not was_called(fused):
        return NOTHING_YET
    lines = [f"  {event.message}" for event in events()]
    if not lines:
        return f"{NOTHING_FUSED} Dynamo captured no graph of it. TORCH_LOGS=+dynamo shows why."
    return "\n".join([NOTHING_FUSED, "What happened in this process:", *lines])


def place_text(place: Place) -> str:
    """add @ layer.0, model.py:12"""
    return f"{place.short_op} @ {place.where}" if place.where else place.short_op


def _graph_text(part: GraphPart) -> str:
    lines = [f"{part.name} ({part.kind}): {len(part.groups)} kinds of fused kernels"]
    for group in part.groups:
        lines += _group_lines(group)
    lines.append(f"  {part.unfused} kernels of one operation")
    lines += [line for made in part.kernels for line in _made_lines(made)]
    lines += [f"  {count} x library call {name}" for name, count in part.library_calls.items()]
    lines += [_refused_line(refused) for refused in part.refusals]
    lines += _saved_lines(part.saved)
    took = CompileSeconds.of([part.seconds])
    lines.append(f"  compiled in {took.total:.2f} s: {took}")
    return "\n".join(lines + [f"  {event}" for event in part.events])


def _group_lines(group: Group) -> list[str]:
    moved = f"{bytes_text(group.bytes_before)} -> {bytes_text(group.bytes_after)}"
    return [
        f"  {group.repeats} x {group.kernel}: {moved}, {group.saved_us:.1f} us saved (predicted)",
        f"      {', '.join(place_text(place) for place in group.operations)}",
    ]


def _made_lines(made: Made) -> list[str]:
    """Names, then how: the kernels of equal layers by the first and the last."""
    names = made.kernels[0] + (f" .. {made.kernels[-1]}" if made.kernels[1:] else "")
    count, us = len(made.kernels), f"{made.predicted_us:.1f} us (predicted)"
    how = [text for text in (made.schedule, made.reason) if text]
    return [f"  {count} x {names}: by {made.template}, {us}", *(f"      {text}" for text in how)]


def _saved_lines(saved: list[Saved]) -> list[str]:
    if not saved:
        return []
    total, count = sum(s.bytes * s.count for s in saved), sum(s.count for s in saved)
    lines = [f"  kept for the backward: {count} tensors, {bytes_text(total)}"]
    for one in saved[:_MOST_SAVED]:
        lines.append(f"      {one.count} x {bytes_text(one.bytes)} of {place_text(one.operation)}")
    return lines


def _refused_line(refused: Refused) -> str:
    return (
        f"  not fused, {refused.reason}: {refused.pairs} pairs, "
        f"{bytes_text(refused.bytes_at_stake)} at stake, such as {refused.example}"
    )
