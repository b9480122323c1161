"""Why two computations do not share a kernel: one value per reason, with the evidence that
`explain` prints."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Reason(Enum):
    """The value is the sentence that a reader sees."""

    EXTERN = "one side is a library call"
    DEVICES = "they run on different devices"
    REENTRY = "fusing would create a cycle"
    MUTATION = "a buffer between them is written in place"
    PARTIAL_WRITE = "the buffer is written in parts, conditionally or by a scatter"
    MAPS = "the consumer's indexing does not match the producer's loops"
    ROWS = "the producer's reduction would be recomputed: the consumer works on other rows"
    COLUMNS = "producer and consumer reduce over different axes"
    SCAN = "a prefix scan would be needed at several points"
    AFTER_COLUMN_REDUCTION = "a sum over all rows must be complete before the consumer starts"
    NO_FRAME = "the reductions of both do not fit one loop nest"
    PARTIAL_STORE = "threads would store the same result redundantly"
    SCATTER = "a scatter runs alone: its writes may collide, so its kernel is ordered or serial"
    ROW_SUMS = "a sum over rows needs few columns, read in order, to stay in registers"
    SORT = "on a CPU, rows are put in order by a kernel that does nothing else"
    NO_HOME = "a result that others need would not be stored exactly once"
    TOO_MANY_BUFFERS = "the fused kernel would use too many buffers"
    TOO_LONG = "the fused kernel would take too long to compile"
    SPILL = "the fused kernel would spill registers"
    MEMORY = "peak memory would rise: large inputs would live longer"
    PRODUCT = "the reduction needs whole rows, and a tile of the GEMM holds parts of them"
    TEMPLATE = "no template takes these shapes, types or layouts"
    EPILOGUE = "the library call has no such epilogue"
    READERS = "other kernels need the result too"
    ALL_ROWS = "a large result cannot be made some rows at a time"
    SMALL_ROWS = "making a large result some rows at a time saves too little memory for its time"
    SLOWER = "fusing is not predicted to be faster"
    MARGIN = "the predicted gain is smaller than the error of predictions"
    BETTER = "fusing it with another kernel gains more"


@dataclass(frozen=True, slots=True)
class Refusal:
    """`evidence`: the names, sizes or axes that decided it."""

    reason: Reason
    evidence: str = ""

    def __str__(self) -> str:
        return f"{self.reason.value} ({self.evidence})" if self.evidence else self.reason.value
