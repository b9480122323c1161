"""Places among sorted numbers, on a GPU."""

from __future__ import annotations

import pytest

import search_cases
from search_cases import DTYPES, LENGTHS


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("length", [*LENGTHS, 3000])
def test_among_one_row(dtype, length):
    search_cases.check_one_row(dtype, length, "cuda")


def test_among_rows():
    search_cases.check_rows("cuda")


def test_what_searches_computes_too():
    search_cases.check_interpolated("cuda")
