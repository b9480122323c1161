"""What a move is worth by its buffers alone.

To price a merge it is made, which takes as long as its kernel is. A recurrence of hundreds of
operations becomes one kernel with dozens of neighbours: trying each of them anew after each merge
would take minutes. Moves of such kernels are guessed when they are found, and priced in their turn.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from torchweld.ir.nodes import Comp
from torchweld.plan.evaluate import Evaluator
from torchweld.templates.pointwise_reduce.price import bytes_of, memory_seconds

LONG = 64  # instructions of two kernels together
# Of what is guessed: a lower price is corrected in its turn, a higher one never is. It also lets
# short kernels merge with each other first, so that long ones grow by doubling.
_CAUTION = 0.9

Kind = Literal["fuse", "repeat", "dissolve"]


def is_long(first: Comp, others: Iterable[Comp]) -> bool:
    return any(len(first.body) + len(other.body) > LONG for other in others)


def guessed_seconds(
    kind: Kind, first: Comp, others: list[Comp], kept: frozenset[str], prices: Evaluator
) -> float:
    """What is saved if arithmetic takes as long as before: launches, and memory that is touched
    once less. `kept`: results of `first` that are stored as before."""
    launch_s = prices.device.launch_s
    shared_s = sum(_seconds({*first.reads, *first.writes} & {*o.reads}, prices) for o in others)
    if kind == "fuse":
        return _CAUTION * (launch_s + shared_s + _seconds({*first.writes} - kept, prices))
    busy_s = prices.cost(first).seconds - launch_s
    copied_s = len(others) * (busy_s - _seconds(first.writes, prices))
    gone_s = launch_s + busy_s if kind == "dissolve" else 0.0
    return _CAUTION * (gone_s + shared_s - copied_s)


def _seconds(names: Iterable[str], prices: Evaluator) -> float:
    hints, device = prices.hints, prices.device
    found = (prices.buffers[n] for n in names)
    return sum(memory_seconds(bytes_of(b, hints), b, hints, device) for b in found)
