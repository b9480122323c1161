"""The decisions about kernels, as records for `explain`."""

from __future__ import annotations

from collections.abc import Iterable

from torchweld.plan.decisions import Choice
from torchweld.templates.template import Kernel


def told(kernels: Iterable[Kernel]) -> list[Choice]:
    """One record for each Comp that `kernels` make."""
    return [
        Choice(name, k.template, str(k.schedule), k.predicted_s * 1e6, k.reason)
        for k in kernels
        for name, _ in k.uses
    ]
