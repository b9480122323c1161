"""Why two computations do not share a kernel: one value per reason, with the evidence that
`explain` prints."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Reason(Enum):
    """The value is the sentence that a reader sees."""

    EXTERN = "one side is a library call"
    DEVICES = "they run on different devices"
    REENTRY = "a path leaves the kernel and comes back"
    MUTATION = "a buffer between them is written in place"
    PARTIAL_WRITE = "the buffer is written in parts, conditionally or by a scatter"
    MAPS = "the consumer's index does not factor through the producer's"
    ROWS = "the producer's rows are not the consumer's, so its reductions would be recomputed"
    COLUMNS = "the producer reduces over other columns than the consumer works on"
    SCAN = "a prefix scan would be needed at several points"
    AFTER_COLUMN_REDUCTION = "the consumer needs a sum over all rows before it can start"
    NO_FRAME = "the reductions of both do not fit one loop nest"
    PARTIAL_STORE = "a result would be stored many times over"
    SCATTER = "a scatter runs alone: its writes may collide, so its kernel is ordered or serial"
    ROW_SUMS = "sums over rows need few, plainly read columns, which stay in registers"
    NO_HOME = "a result that others need would not be stored exactly once"
    TOO_MANY_BUFFERS = "one kernel would touch too many buffers"
    SPILL = "one kernel would need more live values than there are registers"
    MEMORY = "large inputs would have to live longer"
    PRODUCT = "a product's kernel works on tiles, which hold no whole rows to reduce"
    TEMPLATE = "no template takes these shapes, types or layouts"
    EPILOGUE = "the library's call does not do what follows it"
    READERS = "others need the result too"
    SLOWER = "together they are not predicted to be faster"
    MARGIN = "together they gain less than predictions are sure of"
    BETTER = "another fusion of it gains more"


@dataclass(frozen=True, slots=True)
class Refusal:
    """`evidence`: the names, sizes or axes that decided it."""

    reason: Reason
    evidence: str = ""

    def __str__(self) -> str:
        return f"{self.reason.value} ({self.evidence})" if self.evidence else self.reason.value
