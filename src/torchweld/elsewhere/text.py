"""Plans as text that two commits can be compared by: no times of this machine, no addresses."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator

from torchweld.elsewhere.data import PlannedGraph, Refused, Step

_NUMBER = re.compile(r"(?<=\w)_\d+\b")
_CALL = re.compile(r"^\w+\((.*)\)$")


def as_text(graphs: Iterable[PlannedGraph], schedules: bool = False) -> str:
    """Kernels and calls in the order of the program, with their templates and predicted
    microseconds, then how many pairs were refused for which reason."""
    return "\n".join(line for graph in graphs for line in _lines(graph, schedules)) + "\n"


def _lines(graph: PlannedGraph, schedules: bool) -> Iterator[str]:
    yield f"# {graph.target} {graph.kind} on {graph.device}: {summary(graph)}"
    for step in graph.steps:
        yield _line(step, schedules)
    for (reason, evidence), pairs in by_reason(graph.refusals).items():
        yield f"refused {len(pairs)}: {reason}{f' ({evidence})' if evidence else ''}"


def summary(graph: PlannedGraph) -> str:
    """12 kernels (gemm/hopper 4, ..), 5 calls, 310 us of kernels predicted"""
    made = Counter(s.template for s in graph.kernels)
    each = ", ".join(f"{name} {count}" for name, count in sorted(made.items()))
    us = sum(s.predicted_us or 0.0 for s in graph.steps)
    return (f"{len(graph.kernels)} kernels{f' ({each})' if each else ''}, "
            f"{len(graph.calls)} calls, {us:.0f} us predicted")  # fmt: skip


def by_reason(refusals: Iterable[Refused]) -> dict[tuple[str, str], list[Refused]]:
    """Refusals alike but for the number of a layer (addmm_7), those of most bytes first."""
    found: dict[tuple[str, str], list[Refused]] = {}
    for refusal in refusals:
        evidence = _NUMBER.sub("", refusal.evidence)
        found.setdefault((refusal.reason, evidence), []).append(refusal)
    at_stake = {key: sum(r.bytes_at_stake for r in group) for key, group in found.items()}
    return {key: found[key] for key in sorted(found, key=lambda k: (-at_stake[k], k))}


def schedule_text(step: Step) -> str:
    """form=triton, block_m=128, ..: the record without its name and quotes"""
    return _CALL.sub(r"\1", step.schedule).replace("'", "")


def _line(step: Step, schedules: bool) -> str:
    us = "-" if step.predicted_us is None else f"{step.predicted_us:.1f}"
    kind = "call  " if step.is_call else "kernel"
    schedule = f"  {schedule_text(step)}" if schedules and step.schedule else ""
    return f"{kind} {step.name}  {step.template}  {us} us{schedule}"
