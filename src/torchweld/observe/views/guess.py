"""The expected trace on a terminal, and a measured one beside it."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from torchweld.core.grouped import grouped
from torchweld.core.units import bytes_text, general, number_text
from torchweld.observe.record.guess import Expected, Guess, beside, surprises
from torchweld.observe.record.profile import Kernel
from torchweld.observe.views.profile import us_text
from torchweld.observe.views.rows import operations_text
from torchweld.observe.views.terminal import table_of

_MOST_NAMED = 6  # surprises
_LONG_NAME = 28


def show_guess(guess: Guess, console: Console) -> None:
    """Prints the expected kernels in program order, with their times in us."""
    what = "forward + backward" if guess.train else "forward"
    heading = Text.assemble(
        (guess.target, "bold"), f" {guess.way}, {what}, on {guess.device}: nothing was run\n")
    end = Text(f"\n{len(guess.kernels)} kernels, {us_text(guess.us)} us in all; "
               f"{_regimes(guess)}")
    console.print(Group(heading, _trace(guess.kernels), end))


def _trace(kernels: Sequence[Expected]) -> Table:
    """In the order of the program; kernels alike in repeated layers are one row."""
    table = table_of("kernel, where from", "calls", "us each", "us", "limit", "bytes", "flop",
                     title="Expected trace, in program order")
    for same in grouped(kernels, _looks).values():
        first, count = same[0], len(same)
        table.add_row(
            _told(first), str(count), us_text(first.predicted_us),
            us_text(sum(k.predicted_us for k in same)), first.regime,
            bytes_text(count * first.bytes), number_text(round(count * first.flops)),
        )  # fmt: skip
    return table


def _looks(kernel: Expected) -> tuple:
    places = tuple((p.op, general(p.module), p.source) for p in kernel.places)
    return kernel.family, kernel.phase, places, kernel.bytes, kernel.flops


def _told(kernel: Expected) -> str:
    module = general(kernel.places[0].module) if kernel.places else ""
    name = operations_text(kernel.places) or kernel.name
    backward = " (backward)" if kernel.phase == "backward" else ""
    module = module if len(module) <= _LONG_NAME else f"..{module[2 - _LONG_NAME:]}"
    return f"{name}{backward}" + (f"\n  @ {module}" if module else "")


def _regimes(guess: Guess) -> str:
    parts = grouped(guess.kernels, lambda k: k.regime)
    sums = {name: sum(k.predicted_us for k in same) for name, same in parts.items()}
    return ", ".join(f"{name} {us / guess.us:.0%}" for name, us in
                     sorted(sums.items(), key=lambda item: -item[1]) if guess.us)


def beside_view(guess: Guess, kernels: Sequence[Kernel]) -> RenderableType:
    """What was guessed beside what was measured, by what limits a kernel; then the kernels that
    only one of them has."""
    table = table_of("limit", "guessed", "measured", "guessed us", "measured us", "ratio",
                     title=f"The guess of {guess.date[:16].replace('T', ' ')} UTC")
    rows = beside(guess, kernels)
    for row in rows:
        _add(table, row.regime, row.guessed, row.measured, row.guessed_us, row.measured_us)
    _add(table, "all", len(guess.kernels), sum(r.measured for r in rows), guess.us,
         sum(r.measured_us for r in rows))
    unguessed, absent = surprises(guess, kernels)
    lines = [*_named("not guessed", unguessed), *_named("guessed, not run", absent)]
    return Group(table, *map(Text, lines))


def _add(table: Table, name: str, guessed: int, measured: int, us: float, took: float) -> None:
    ratio = f"{took / us:.2f}" if us and took else "-"
    table.add_row(name, str(guessed), str(measured), us_text(us), us_text(took), ratio)


def _named(label: str, operations: Sequence[str]) -> list[str]:
    if not operations:
        return []
    more = len(operations) - _MOST_NAMED
    told = "; ".join(operations[:_MOST_NAMED]) + (f"; and {more} more" if more > 0 else "")
    return [f"{label}: {told}"]
