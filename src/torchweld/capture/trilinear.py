"""Sums of products of three tensors, `F.bilinear` and its gradients, as two products.

    sum over i, j of x[n, i] * w[o, i, j] * y[n, j]
    ->  m = x @ w;  sum over j of m[n, o, j] * y[n, j]

ATen makes a product for each i instead. In 16 bits it rounds each of them, and the call stays.
"""

from __future__ import annotations

from itertools import permutations
from math import prod
from string import ascii_letters

import torch

aten = torch.ops.aten


def trilinear(a, b, c, expand_a, expand_b, expand_c, summed, unroll=1):
    """`aten._trilinear`: of three tensors without the dimensions in `expand_...`, without those in
    `summed`."""
    if torch.promote_types(a.dtype, torch.float32) != a.dtype:
        return NotImplemented
    letters = ascii_letters[: a.dim() + len(expand_a)]
    dropped = {letters[d] for d in summed}
    result = "".join(n for n in letters if n not in dropped)
    factors = [
        ("".join(n for d, n in enumerate(letters) if d not in expanded), tensor)
        for tensor, expanded in ((a, expand_a), (b, expand_b), (c, expand_c))
    ]
    extents = {n: extent for names, t in factors for n, extent in zip(names, t.shape)}
    orders = [order for order in permutations(factors) if order[0][0] <= order[1][0]]
    first, second, last = min(orders, key=lambda o: _size(_between(*o, result), extents))
    between = _between(first, second, last, result)
    product = torch.einsum(f"{first[0]},{second[0]}->{between}", first[1], second[1])
    return torch.einsum(f"{between},{last[0]}->{result}", product, last[1])


def _between(first, second, last, result: str) -> str:
    """The dimensions that a product of two factors keeps."""
    wanted = {*last[0], *result}
    return "".join(sorted({*first[0], *second[0]} & wanted))


def _size(names: str, extents: dict) -> tuple[int, int]:
    """Of the product between: sizes that are not known, and the rest, as a symbol that is compared
    would be guarded."""
    known = [extents[n] for n in names if isinstance(extents[n], int)]
    return len(names) - len(known), prod(known)


DECOMPOSITIONS = {aten._trilinear.default: trilinear}
