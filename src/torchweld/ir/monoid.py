"""The monoids of reductions and scans: identity, merge, and the meaning on torch tensors."""
from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from torchweld.core.dtypes import DType, to_torch


@dataclass(frozen=True, slots=True)
class Monoid:
    """`results`: number of components. `over(args, dims)` reduces tensors over `dims` (kept, with
    extent one) and returns the components. `identity`: of each component, for floats; integers use
    their dtype's limits (see `identity_of`). `scan(arg, dim)`: the prefixes; None where nothing
    scans by it. logaddexp, the logarithm of the sum of exponentials, is of scans alone; so is sort,
    whose "prefixes" are the elements in ascending order: of integers, no two of a row alike."""

    name: str
    results: int
    identity: tuple[float, ...]
    over: Callable | None
    exact: bool = False  # bitwise whatever the order
    scan: Callable | None = None
    cost: float = 1.0  # multiply-adds of one merge


def _flatten(t: torch.Tensor, dims: tuple[int, ...]) -> torch.Tensor:
    """`dims` moved last and merged."""
    keep = [d for d in range(t.dim()) if d not in dims]
    merged = math.prod(t.shape[d] for d in dims)  # not -1, which is ambiguous for empty tensors
    return t.permute(*keep, *dims).reshape(*(t.shape[d] for d in keep), merged)


def _unflatten(t: torch.Tensor, dims: tuple[int, ...]) -> torch.Tensor:
    for d in sorted(dims):
        t = t.unsqueeze(d)
    return t


def _prod(args, dims):
    return (_unflatten(_flatten(args[0], dims).prod(-1), dims),)


def _extreme(fn):
    def over(args, dims):
        return (fn(args[0], dims, keepdim=True),)

    return over


def _arg_extreme(fn):
    def over(args, dims):
        flat, position = _flatten(args[0], dims), _flatten(args[1], dims)
        at = fn(flat, -1)  # torch returns the first NaN if there is one; ties are resolved below
        best = flat.gather(-1, at[..., None])
        same = flat == best
        if flat.is_floating_point():
            same = torch.where(torch.isnan(best), torch.isnan(flat), same)
        first = torch.where(same, position, torch.iinfo(position.dtype).max).amin(-1)
        return _unflatten(best[..., 0], dims), _unflatten(first, dims)

    return over


def _welford(args, dims):
    near = args[0].mean(dims, keepdim=True)
    missed = (args[0] - near).mean(dims, keepdim=True)  # added: of equal numbers it is that number
    mean = torch.where(near.isinf(), near, near + missed)
    return mean, ((args[0] - mean) ** 2).sum(dims, keepdim=True)


def _logsumexp(args, dims):
    top = args[0].amax(dims, keepdim=True)
    shift = torch.where(torch.isinf(top) & (top < 0), torch.zeros_like(top), top)
    return top, torch.exp(args[0] - shift).sum(dims, keepdim=True)


def _any(args, dims):
    return (_unflatten(_flatten(args[0], dims).any(-1), dims),)


def _all(args, dims):
    return (_unflatten(_flatten(args[0], dims).all(-1), dims),)


def _sum(args, dims):
    return (args[0].sum(dims, keepdim=True, dtype=args[0].dtype),)


def _cummax(t, dim):
    return torch.cummax(t, dim).values


def _cummin(t, dim):
    return torch.cummin(t, dim).values


def _sorted(t, dim):
    return torch.sort(t, dim).values


_ROWS = (
    Monoid("sum", 1, (0.0,), _sum, scan=torch.cumsum),
    Monoid("prod", 1, (1.0,), _prod, scan=torch.cumprod),
    Monoid("max", 1, (-math.inf,), _extreme(torch.amax), True, _cummax),
    Monoid("min", 1, (math.inf,), _extreme(torch.amin), True, _cummin),
    Monoid("any", 1, (0,), _any, True),
    Monoid("all", 1, (1,), _all, True),
    Monoid("argmax", 2, (-math.inf, 2**63 - 1), _arg_extreme(torch.argmax), True),
    Monoid("argmin", 2, (math.inf, 2**63 - 1), _arg_extreme(torch.argmin), True),
    Monoid("welford", 2, (0.0, 0.0), _welford),
    Monoid("logaddexp", 1, (-math.inf,), None, scan=torch.logcumsumexp, cost=22.0),
    Monoid("logsumexp", 2, (-math.inf, 0.0), _logsumexp),
    Monoid("sort", 1, (math.inf,), None, True, _sorted, cost=60.0),
)

TABLE = {row.name: row for row in _ROWS}


def identity_of(name: str, dtype: DType, item: int = 0) -> float | int | bool:
    """Component `item` of a monoid's identity in `dtype`: an integer's limit where a float's is
    infinite."""
    identity = TABLE[name].identity[item]
    if dtype.kind == "bool":
        return identity > 0
    if dtype.is_float:
        return float(identity)
    if math.isinf(identity):
        limits = torch.iinfo(to_torch(dtype))
        return limits.max if identity > 0 else limits.min
    return int(identity)
