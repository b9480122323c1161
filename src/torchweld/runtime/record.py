"""What the runtime has to tell `explain`: short facts, appended to `record.events` while a program
is loaded and run."""

from __future__ import annotations

from dataclasses import dataclass

from torchweld.core.logs import logger


@dataclass(frozen=True, slots=True)
class Note:
    """`kind`: fallback, copied_input, copied_result, packed, compiled, graph, no_graph, library,
    out_of_memory.
    `amount` in `unit`."""

    kind: str
    subject: str
    text: str
    amount: float = 0.0
    unit: str = ""


def note(record, kind: str, subject: str, text: str, amount: float = 0.0, unit: str = "") -> None:
    """Appends to `record.events`, once for each kind and subject: programs run many times. A
    record of None hears nothing."""
    if record is None or any(_is(e, kind, subject) for e in record.events):
        return
    logger("runtime").debug("%s: %s: %s", kind, subject, text)
    record.events.append(Note(kind, subject, text, amount, unit))


def _is(event, kind: str, subject: str) -> bool:
    return isinstance(event, Note) and (event.kind, event.subject) == (kind, subject)
