"""A report on a terminal: two tables of figures, then what was fused and what not. Readable at
80 columns."""
from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from torchweld.core.units import (
    bytes_text,
    count_text,
    ms_text,
    number_text,
    seconds_text,
)
from torchweld.observe.record import report as data
from torchweld.observe.record.profile import short_name
from torchweld.observe.views.rows import operations_text
from torchweld.observe.views.terminal import and_more, table_of
from torchweld.observe.views.verdict import verdicts

BLANK = Text("")
SHOWN = 8  # rows of groups and of refusals for each graph; --json has all


def show(report: data.Report, console: Console) -> None:
    """Prints `report_view(report)`."""
    console.print(report_view(report))


def report_view(report: data.Report) -> RenderableType:
    """The report as tables for a terminal."""
    parts = [_heading(report), _times(report.ways), BLANK, _figures(report.ways), BLANK]
    failed = [way for way in report.ways if way.problem]
    parts += [Text(f"{way.name} was not measured: {way.problem}") for way in failed]
    parts.append(_verdict(report))
    for graph in report.graphs:
        parts += _graph(graph)
    parts += [Text(f"warning: {warning}") for warning in dict.fromkeys(report.warnings)]
    return Group(*parts)


def _heading(report: data.Report) -> Text:
    subject, machine = report.subject, report.machine
    what = "forward + backward" if subject.train else "forward"
    where = machine.name + (f", {machine.threads} threads" if machine.device == "cpu" else "")
    return Text.assemble(
        (subject.target, "bold"),
        f" {what}, {subject.dtype}, inputs {', '.join(subject.inputs)}, "
        f"{number_text(subject.parameters)} parameters\n{where}, torch {machine.torch}\n")


def _times(ways: Iterable[data.Way]) -> Table:
    table = table_of("way", "median ms", "spread ms", "/ torchweld", "first call", title="Time")
    for way in ways:
        if way.timing:
            cache = f" ({way.first_call_cache})" if way.first_call_cache else ""
            table.add_row(way.name, ms_text(way.timing.median_ms), ms_text(way.timing.iqr_ms),
                          f"{way.timing.ratio:.2f}", seconds_text(way.first_call_s) + cache)
    return table


def _figures(ways: Iterable[data.Way]) -> Table:
    table = table_of("way", "kernels", "bytes moved", "peak memory", "error L2", "error max",
                     title="Work, memory, error against float64")
    for way in ways:
        if way.timing:
            l2, most = ("-", "-") if way.error is None else (
                f"{way.error.relative_l2:.1e}", f"{way.error.maximum:.1e}{_mark(way.error)}")
            table.add_row(way.name, count_text(way.kernels), bytes_text(way.bytes_moved),
                          bytes_text(way.peak_bytes), l2, most)
    return table


def _mark(error: data.Error) -> str:
    return " !" if error.within_contract is False else ""


def _verdict(report: data.Report) -> Text:
    lines = [str(verdict) for verdict in verdicts(report)]
    broken = [w.name for w in report.ways if w.error and w.error.within_contract is False]
    lines += [f"! {name} is outside the error contract" for name in broken]
    return Text("\n".join([*lines, ""]))


def _graph(graph: data.GraphPart) -> list[RenderableType]:
    calls = ", ".join(f"{n} x {short_name(name)}" for name, n in graph.library_calls.items())
    rest = f"{graph.unfused} kernels of one operation"
    rest += f"; library calls: {calls}" if calls else ""
    parts: list[RenderableType] = [_groups(graph), Text(rest + "\n")]
    if graph.refusals:
        parts.append(_refusals(graph))
    return [*parts, *(Text(event) for event in graph.events)]


def _groups(graph: data.GraphPart) -> Table:
    table = table_of("fused operations", "times", "bytes", "fused", "saved us",
                     title=f"Fused in {graph.name} ({graph.kind})")
    for group in graph.groups[:SHOWN]:
        table.add_row(operations_text(group.operations), str(group.repeats),
                      bytes_text(group.bytes_before), bytes_text(group.bytes_after),
                      f"{group.saved_us:.1f}")
    return and_more(table, len(graph.groups), SHOWN)


def _refusals(graph: data.GraphPart) -> Table:
    table = table_of("reason", "pairs", "at stake", title=f"Not fused in {graph.name}")
    for refused in graph.refusals[:SHOWN]:
        table.add_row(f"{refused.reason}\n  such as {refused.example}", str(refused.pairs),
                      bytes_text(refused.bytes_at_stake))
    return and_more(table, len(graph.refusals), SHOWN)
