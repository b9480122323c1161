"""Places among sorted numbers."""

from __future__ import annotations

import pytest
import torch

import search_cases
from search_cases import DTYPES, LENGTHS, numbers, same


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("length", LENGTHS)
def test_among_one_row(dtype, length):
    search_cases.check_one_row(dtype, length)


def test_among_rows():
    search_cases.check_rows()


def test_what_searches_computes_too():
    search_cases.check_interpolated()


OTHERS = ("no numbers", "no values", "a scalar", "a number", "by an order", "strided")


@pytest.mark.parametrize("name", OTHERS)
def test_other_calls(name):
    b, v = numbers((9, 17), torch.float32).sort(1).values, numbers((9, 5), torch.float32)
    function, given = {
        "no numbers": (torch.searchsorted, (b[:, :0], v)),
        "no values": (torch.searchsorted, (b, v[:, :0])),
        "a scalar": (lambda b, v: torch.searchsorted(b[0].contiguous(), v[0, 0]), (b, v)),
        "by an order": (lambda b, v: torch.searchsorted(b, v, sorter=b.argsort(1)), (b, v)),
        "strided": (lambda b, v: torch.bucketize(v.t(), b[:, 3]), (b[b[:, 3].argsort()], v)),
        "a number": (lambda b, v: torch.searchsorted(b[0].contiguous(), 0.5), (b, v)),
    }[name]  # fmt: skip
    same(lambda *given: (function(*given),), *given)
