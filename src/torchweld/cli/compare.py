"""`torchweld compare`: two saved reports, side by side; the exit code says whether one is worse."""

from __future__ import annotations

import json
from pathlib import Path

from rich.console import Console
from rich.table import Table

from torchweld.observe.record.schema import read_json
from torchweld.observe.views.compare import WORSE, Change, Comparison, compare

_STYLES = {"better": "green", "worse": "bold red", "told": "dim"}
_WORDS = {"better": "better", "worse": "WORSE", "same": "same", "told": ""}


def run(
    before: Path, after: Path, tolerance: float, relative_to: str | None, as_json: bool
) -> bool:
    """Shows the comparison; True if something is worse. Errors: UsageError for a file that is no
    report, or reports that cannot be compared."""
    found = compare(read_json(before), read_json(after), tolerance, relative_to)
    if as_json:
        print(json.dumps(found.to_dict(), indent=2))
    else:
        _show(found, Console())
    return found.regressed


def _show(found: Comparison, console: Console) -> None:
    table = Table(box=None, pad_edge=False)
    table.add_column("what", overflow="fold")
    for name in ("before", "after", "change", "noise", ""):
        table.add_column(name, justify="right", no_wrap=True)
    for change in found.changes:
        table.add_row(*_cells(change), style=_STYLES.get(change.verdict))
    console.print(table)
    if found.kernels:
        console.print("kernels whose time changed most, in a profile of each")
        for change in found.kernels:
            before, after, moved = _cells(change)[1:4]
            console.print(f"  {before} -> {after} ({moved})  {change.what}", markup=False)
    for note in found.notes:
        console.print(f"differs: {note}", markup=False)
    worse = [change.what for change in found.changes if change.verdict == WORSE]
    console.print(f"worse: {', '.join(worse)}" if worse else "nothing is worse", markup=False)


def _cells(change: Change) -> tuple[str, ...]:
    moved = "-" if change.ratio is None else f"{100 * (change.ratio - 1):+.1f} %"
    noise = "-" if change.noise is None else f"{100 * change.noise:.1f} %"
    return change.what, change.before, change.after, moved, noise, _WORDS[change.verdict]
