"""Sums of runs for tests: rows x[order] added up by sorted keys (templates/runs/)."""

from __future__ import annotations

import torch

from torchweld.capture.lowering.ordered import key_type
from torchweld.codegen.source import KernelBundle
from torchweld.core import dtypes
from torchweld.targets.gpus import H100
from torchweld.templates.gemm.choice import choose
from torchweld.templates.runs import template
from torchweld.templates.runs.form import Walk
from torchweld.templates.template import Problem
from triton_cases import Case, case

_BODY = """%0 = load keys[i] : {keys}
%1 = cast %0 : i64
%2 = const {offset} : i64
%3 = add %1 %2 : i64
%4 = const 0 : i64
%5 = maximum %3 %4 : i64
%6 = const {last} : i64
%7 = minimum %5 %6 : i64
%8 = load order[i] : i64
%9 = load x[a, %8, j] : {dtype}
%10 = const {rows} : i64
%11 = lt %3 %10 : b1
store.add_runs y[a, %7, j] %9 init 0.0 if %11"""


def runs(keys: torch.Tensor, rows: int, columns: tuple[int, int], dtype: str = "f32",
         fill: dict | None = None) -> Case:  # fmt: skip
    """y[columns[0], rows, columns[1]] of x at as many points as there are `keys`, of which those
    from `rows` on are nobody's."""
    n, order = len(keys), torch.randperm(len(keys), generator=torch.Generator().manual_seed(0))
    outer, inner = columns
    kind, offset = key_type(rows)
    text = _BODY.format(keys=kind, offset=offset, last=rows - 1, rows=rows, dtype=dtype)
    keys = (keys.sort()[0] - offset).to(dtypes.to_torch(kind))
    return case(
        f"runs_{n}_{rows}_{outer}_{inner}_{dtype}", f"a:{outer}, i:{n}, j:{inner}", text,
        fill={"keys": keys, "order": order, **(fill or {})}, keys=(kind.name, n),
        order=("i64", n), x=(dtype, outer, n, inner), y=(dtype, outer, rows, inner),
    )  # fmt: skip


def bundle_of(given: Case, steps: int | None = None, stretches: int = 2) -> KernelBundle:
    """`steps`, `stretches`: of a program of four columns, in place of the default."""
    problem = Problem(given.comp, given.buffers, H100, {}, choose)
    found = template.match(problem)
    assert template.supports(found, problem) is None
    walk = next(template.candidates(found, problem))
    if steps is not None:
        walk = Walk(steps, stretches, min(4, walk.columns))
    return template.generate(found, walk, problem)


def drawn(count: int, rows: int) -> torch.Tensor:
    """Keys in random order; those of `rows` are nobody's."""
    return torch.randint(0, rows + 1, (count,), generator=torch.Generator().manual_seed(count))


ALL = [
    runs(drawn(50, 7), 7, (1, 5)),
    runs(drawn(37, 3), 3, (1, 6), "bf16"),
    runs(drawn(64, 40), 40, (3, 4), "f16"),
    runs(drawn(61, 40000), 40000, (1, 1), "f64"),
    runs(torch.tensor([0] * 9 + [1, 32768, 32767] * 9 + [65534, 65535] * 9), 65535, (1, 3)),
    runs(torch.tensor([255] * 19 + [254] * 20 + [0, 3] * 9), 255, (1, 3)),  # one byte
    runs(drawn(61, 70000), 70000, (2, 3)),
    runs(torch.full((40,), 3), 9, (1, 4)),  # a run of many tiles
    runs(torch.tensor([5] * 16 + [6] * 8 + [7] * 9), 8, (1, 4)),  # that end where tiles do
    runs(drawn(5, 7), 7, (2, 3)),
]
