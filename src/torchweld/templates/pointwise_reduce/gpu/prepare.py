"""What is generated of a Comp: the same results with less to compute (ir/narrow.py, selects.py)."""

from __future__ import annotations

from dataclasses import replace

from torchweld.ir.narrow import narrowed
from torchweld.ir.selects import settled
from torchweld.templates.pointwise_reduce.gpu.emit import is_wide
from torchweld.templates.template import Problem


def prepared(problem: Problem) -> Problem:
    wide = is_wide(problem.accesses, problem.buffers)
    comp = problem.comp if wide else narrowed(problem.comp)
    return replace(problem, comp=settled(comp))
