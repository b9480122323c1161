"""What of a fused object runs in eager, told to the user: Dynamo cut a graph, or gave up."""

from __future__ import annotations

import re
from functools import cache

from torchweld.capture import torch_private, tracing
from torchweld.core import events
from torchweld.fused.graphs import calls

ADVICE = (
    "TORCH_LOGS=graph_breaks shows the line; keep it out of what is fused, or write it so that "
    "tensors alone decide"
)
# Not an operator that torch cannot trace (`F.ctc_loss`): the user cannot change that.
_OF_SIZES = re.compile(
    r"specialized integer|dynamic shape(?! operator \(no meta)|unbacked", re.IGNORECASE
)


def _graph_cut(place: str, reason: str) -> None:
    """Dynamo cut a graph of the fused object whose call is under way. Where a size that depends
    on data decides how often a loop runs (over the experts that are hit), its body is in eager:
    that is warned of; others are recorded."""
    if not calls.under_way:
        return
    notes, lines = calls.under_way[-1], [line.strip() for line in reason.splitlines()]
    said = next((line for line in lines[1:] if line), lines[0]).removeprefix("Explanation: ")
    why = f"{place}: {said}"
    notes.cuts[why] = None
    message = f"a graph of {notes.name} is cut, what follows may run in eager: {why}"
    if _OF_SIZES.search(reason):
        events.warn_once(f"cut:{why}", f"{message}; {ADVICE}")
    else:
        events.record(f"cut:{why}", message)


listener = tracing.Listener(lambda: bool(calls.under_way), _graph_cut)


@cache
def listen_for_limits() -> None:
    """From the first fused object on; once for a process."""
    torch_private.on_recompile_limit(_limit_hit)


def _limit_hit(message: str) -> None:
    """Dynamo gives a function up: from now on new kinds of inputs run in eager there."""
    if not calls.under_way:
        return
    name = calls.under_way[-1].name
    said = " ".join(line.strip() for line in message.splitlines()[:3])
    what = f"{name} runs in eager for further kinds of inputs (dynamic=True may help): {said}"
    events.warn_once(f"limit:{said}", what)
