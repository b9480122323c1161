"""What is generated of a Comp: the same results with less to compute (ir/narrow.py, selects.py)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from torchweld.ir.access import addressed
from torchweld.ir.narrow import narrowed
from torchweld.ir.nodes import Buffer, Comp
from torchweld.ir.selects import settled
from torchweld.templates.pointwise_reduce.gpu.emit import is_wide
from torchweld.templates.template import Problem


def prepared(problem: Problem) -> Problem:
    return replace(problem, comp=prepared_comp(problem.comp, problem.buffers, problem.hints))


def prepared_comp(comp: Comp, buffers: Mapping[str, Buffer], hints: Mapping[str, int]) -> Comp:
    """`comp`, which has a frame."""
    wide = is_wide(addressed(comp, buffers, hints), buffers)
    return settled(comp if wide else narrowed(comp))
