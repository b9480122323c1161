"""`torchweld plan`: what would be compiled for a device that need not be here."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from torchweld.cli.asked import check_output
from torchweld.core.files import write_whole
from torchweld.core.units import bytes_text
from torchweld.elsewhere.data import Asked, PlannedGraph, Plans, Step, as_json
from torchweld.elsewhere.process import plans
from torchweld.elsewhere.text import by_reason, schedule_text, summary


@dataclass(frozen=True)
class Request:
    """The command's arguments."""

    asked: Asked
    json: Path | None
    refusals: bool


def run(request: Request) -> None:
    """Errors: UsageError or EnvironmentProblem for whatever the user can mend."""
    check_output(request.json, "--json")
    with Console(stderr=True).status("plan"):
        (found,) = plans([request.asked])
    show(found, Console(), request.refusals)
    if request.json:
        write_whole(json.dumps(as_json(found), indent=1) + "\n", request.json)


def show(found: Plans, console: Console, refusals: bool) -> None:
    """Prints each graph's kernels and calls, and its refusals if `refusals`; notes go to stderr."""
    for note in found.notes:
        print(f"torchweld: {note}", file=sys.stderr)
    for graph in found.graphs:
        console.print(_steps(graph))
        if refusals:
            console.print(_refusals(graph))


def _steps(graph: PlannedGraph) -> Table:
    title = f"{graph.target}, {graph.kind}, on {graph.device}: {summary(graph)}"
    table = Table(title=escape(title), title_justify="left", box=box.SIMPLE_HEAD)
    for name in ("kernel or call", "template", "schedule", "because"):
        table.add_column(name, overflow="fold")
    table.add_column("predicted us", justify="right")
    for step in graph.steps:
        table.add_row(*_row(step))
    return table


def _row(step: Step) -> tuple[str, ...]:
    us = "" if step.predicted_us is None else f"{step.predicted_us:.1f}"
    template = "library call" if step.is_call else step.template
    name = step.template if step.is_call else step.name
    return (*map(escape, (name, template, schedule_text(step), step.reason)), us)


def _refusals(graph: PlannedGraph) -> Table:
    table = Table(title="not fused", title_justify="left", box=box.SIMPLE_HEAD)
    for name in ("pairs", "because", "of them"):
        table.add_column(name, overflow="fold")
    table.add_column("exchanged", justify="right")
    for (reason, evidence), pairs in by_reason(graph.refusals).items():
        first, why = pairs[0], f"{reason} ({evidence})" if evidence else reason
        size = bytes_text(sum(r.bytes_at_stake for r in pairs))
        table.add_row(str(len(pairs)), escape(why), f"{first.producer} -> {first.consumer}", size)
    return table
