"""The monoids of reductions and scans: identity, merge, and the meaning on torch tensors."""
from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Monoid:
    """`results`: number of components. `over(args, dims)` reduces tensors over `dims` (kept, with extent one) and returns
    the components. `identity`: of each component, for floats; integers use their dtype's limits (see `identity_of`)."""

    name: str
    results: int
    identity: tuple[float, ...]
    over: Callable
    exact: bool = False  # bitwise whatever the order
    scan: Callable | None = None


def _flatten(t: torch.Tensor, dims: tuple[int, ...]) -> torch.Tensor:
    """`dims` moved last and merged."""
    keep = [d for d in range(t.dim()) if d not in dims]
    return t.permute(*keep, *dims).reshape(*(t.shape[d] for d in keep), -1)


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
        same = torch.where(torch.isnan(best), torch.isnan(flat), flat == best) if flat.is_floating_point() else flat == best
        first = torch.where(same, position, torch.iinfo(torch.int64).max).amin(-1)
        return _unflatten(best[..., 0], dims), _unflatten(first, dims)

    return over


def _welford(args, dims):
    mean = args[0].mean(dims, keepdim=True)
    return mean, ((args[0] - mean) ** 2).sum(dims, keepdim=True)


def _logsumexp(args, dims):
    top = args[0].amax(dims, keepdim=True)
    shift = torch.where(torch.isinf(top) & (top < 0), torch.zeros_like(top), top)
    return top, torch.exp(args[0] - shift).sum(dims, keepdim=True)


_ROWS = (
    Monoid("sum", 1, (0.0,), lambda a, d: (a[0].sum(d, keepdim=True, dtype=a[0].dtype),), scan=torch.cumsum),
    Monoid("prod", 1, (1.0,), _prod, scan=torch.cumprod),
    Monoid("max", 1, (-math.inf,), _extreme(torch.amax), True, lambda t, d: torch.cummax(t, d).values),
    Monoid("min", 1, (math.inf,), _extreme(torch.amin), True, lambda t, d: torch.cummin(t, d).values),
    Monoid("any", 1, (0,), lambda a, d: (_unflatten(_flatten(a[0], d).any(-1), d),), True),
    Monoid("all", 1, (1,), lambda a, d: (_unflatten(_flatten(a[0], d).all(-1), d),), True),
    Monoid("argmax", 2, (-math.inf, 2**63 - 1), _arg_extreme(torch.argmax), True),
    Monoid("argmin", 2, (math.inf, 2**63 - 1), _arg_extreme(torch.argmin), True),
    Monoid("welford", 2, (0.0, 0.0), _welford),
    Monoid("logsumexp", 2, (-math.inf, 0.0), _logsumexp),
)

TABLE = {row.name: row for row in _ROWS}
