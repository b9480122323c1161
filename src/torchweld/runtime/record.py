"""What the runtime has to tell `explain`: short facts, appended to `record.events` while a program
is loaded and run."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Note:
    """`kind`: fallback, copied_input, copied_result, packed, compiled, graph, no_graph, library.
    `amount` in `unit`."""

    kind: str
    subject: str
    text: str
    amount: float = 0.0
    unit: str = ""


def note(record, kind: str, subject: str, text: str, amount: float = 0.0, unit: str = "") -> None:
    """Appends to `record.events`; a record of None hears nothing."""
    if record is not None:
        record.events.append(Note(kind, subject, text, amount, unit))
