"""Products of groups of rows, each with a matrix of its own: what mixtures of experts are made of.

Rows of one group lie together; `ends[e]` is the row at which group e ends. Each group is one call
of the library's product on the rows as they lie, so that groups without rows cost nothing, and any
number of rows in each runs the same program. The host reads `ends`: for tensors on a CPU.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from torchweld.core.errors import IndexOutOfRange

_library = torch.library.Library("torchweld", "FRAGMENT")
_library.define("grouped_mm(Tensor rows, Tensor matrices, Tensor ends) -> Tensor")
_library.define("grouped_outer(Tensor rows, Tensor others, Tensor ends) -> Tensor")
_library.define("group_rows(Tensor chosen, int groups) -> (Tensor, Tensor, Tensor)")
ops = torch.ops.torchweld


def grouped_mm(rows: torch.Tensor, matrices: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """[s, n]: row i of `rows` [s, k] times matrix g of `matrices` [g, k, n], for the group g of row
    i. Zero for rows behind the last group. One dtype; `ends`: integers [g], ascending."""
    result = rows.new_empty(rows.shape[0], matrices.shape[2])
    last = 0
    for group, start, end in _groups(ends):
        torch.mm(rows[start:end], matrices[group], out=result[start:end])
        last = end
    result[last:].zero_()
    return result


def grouped_outer(rows: torch.Tensor, others: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """[g, k, n]: for each group the sum over its rows of the outer products of `rows` [s, k] with
    `others` [s, n]; zeros for a group without rows."""
    result = rows.new_empty(ends.shape[0], rows.shape[1], others.shape[1])
    done = 0
    for group, start, end in _groups(ends):
        result[done:group].zero_()
        torch.mm(rows[start:end].t(), others[start:end], out=result[group])
        done = group + 1
    result[done:].zero_()
    return result


def group_rows(
    chosen: torch.Tensor, groups: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(order, place, ends), integers [s], [s], [groups]: row order[i] of those whose groups are
    `chosen` [s] comes i-th, row i comes to place[i]. Rows of one group keep their order. Negative
    numbers count from the end, as in an index; others raise IndexOutOfRange."""
    if chosen.numel():
        least, most = (int(n) for n in torch.aminmax(chosen))
        if least < -groups or most >= groups:
            raise IndexOutOfRange(
                f"index {most if most >= groups else least} is out of bounds for {groups} groups",
                do="check what chooses them",
            )
        chosen = chosen + groups * (chosen < 0) if least < 0 else chosen
    order = torch.argsort(chosen, stable=True)
    place = torch.empty_like(order)
    place[order] = torch.arange(len(order))
    return order, place, torch.bincount(chosen, minlength=groups).cumsum(0)


def _groups(ends: torch.Tensor) -> Iterator[tuple[int, int, int]]:
    """(group, first row, row behind the last) of each group that has rows."""
    start = 0
    for group, end in enumerate(ends.tolist()):
        if end > start:
            yield group, start, end
            start = end


def _empty_mm(rows, matrices, ends):
    return rows.new_empty(rows.shape[0], matrices.shape[2])


def _empty_outer(rows, others, ends):
    return rows.new_empty(ends.shape[0], rows.shape[1], others.shape[1])


def _empty_rows(chosen, groups):
    made = chosen.new_empty(chosen.shape[0], dtype=torch.int64)
    return made, torch.empty_like(made), chosen.new_empty(groups, dtype=torch.int64)


def _keep(ctx, inputs, output) -> None:
    ctx.save_for_backward(*inputs)


def _mm_backward(ctx, gradient):
    """That of the matrices lies in memory as they do."""
    rows, matrices, ends = ctx.saved_tensors
    of_rows = ops.grouped_mm(gradient, matrices.transpose(1, 2), ends)
    if matrices.stride(2) == 1:
        return of_rows, ops.grouped_outer(rows, gradient, ends), None
    return of_rows, ops.grouped_outer(gradient, rows, ends).transpose(1, 2), None


for _name, _function, _fake in (
    ("grouped_mm", grouped_mm, _empty_mm),
    ("grouped_outer", grouped_outer, _empty_outer),
    ("group_rows", group_rows, _empty_rows),
):
    _library.impl(_name, _function, "CompositeExplicitAutograd")
    torch.library.register_fake(f"torchweld::{_name}", _fake, lib=_library)
torch.library.register_autograd(
    "torchweld::grouped_mm", _mm_backward, setup_context=_keep, lib=_library
)
