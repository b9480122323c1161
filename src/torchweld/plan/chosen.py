"""The decisions about kernels, as records for `explain`."""

from __future__ import annotations

from collections.abc import Iterable

from torchweld.plan.decisions import Choice
from torchweld.templates.template import Kernel

_NOTES = {"attention/": "the scores are never in memory"}  # by how templates' names begin


def told(kernels: Iterable[Kernel]) -> list[Choice]:
    """One record for each Comp that `kernels` make."""
    return [
        Choice(name, k.template, str(k.schedule), k.predicted_s * 1e6, _reason(k))
        for k in kernels
        for name, _ in k.uses
    ]


def _reason(kernel: Kernel) -> str:
    notes = (note for name, note in _NOTES.items() if kernel.template.startswith(name))
    return "; ".join((*notes, *([kernel.reason] if kernel.reason else [])))
