"""Reductions of rows abreast whose number is no multiple of a vector: the last block is a whole one
over some of the one before, unless that would add or read twice what may be once."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import torchweld
from torchweld.templates.pointwise_reduce.cpu import schedule

CASES = {
    "logsumexp": lambda x, b: (x + b).logsumexp(1),
    "softmax": lambda x, b: (x * b).softmax(1),
    "extremes and places": lambda x, b: (*(x - b).max(1), (x - b).argmin(1)),
    "a norm": lambda x, b: F.layer_norm((x * b).transpose(1, 2), x.shape[1:2]).transpose(1, 2),
    "a scan": lambda x, b: (x + b).cumsum(1) / (x.abs().sum(1, keepdim=True) + 1),
    "sums over rows beside": lambda x, b: ((x * b).sum(1), (x * b).softmax(1).sum((0, 1))),
    "two results, in halves": lambda x, b: ((x * b).bfloat16(), (x.bfloat16() + b).amax(1)),
}


@pytest.mark.parametrize("length", [9, 10, 13, 15, 17, 20, 23, 31, 35, 47, 67, 99, 131])
@pytest.mark.parametrize("name", CASES)
def test_rows_of_any_number(name, length):
    torch.compiler.reset()
    torch.manual_seed(length)
    function, x, b = CASES[name], torch.randn(5, 21, length), torch.randn(5, 1, length)
    found, exact = torchweld.fuse(lambda *a: function(*a))(x, b), function(x, b)
    torch.testing.assert_close(found, exact, rtol=2e-5, atol=2e-5)


def test_what_is_written_in_place_is_written_once():
    x = torch.randn(5, 21, 23)
    before = x.clone()

    def shifted(t):
        t.sub_(t.amax(1, keepdim=True))

    torchweld.fuse(shifted)(x)
    torch.testing.assert_close(x, before - before.amax(1, keepdim=True), rtol=0, atol=0)


@pytest.mark.parametrize(("lanes", "rows", "block", "chosen", "overlaps"), [
    (16, 9, 16, 16, False),
    (16, 12, 16, 16, False),  # a half and a quarter of a vector
    (16, 15, 16, 8, True),
    (16, 17, 32, 32, False),
    (16, 20, 32, 16, True),
    (16, 23, 32, 16, True),
    (16, 32, 32, 32, False),
    (16, 47, 64, 16, True),
    (16, 99, 64, 64, True),
    (16, 130, 64, 64, False),
    (8, 20, 32, 32, False),
    (8, 23, 32, 8, True),
    (4, 20, 32, 32, False),
    (4, 23, 32, 8, True),
])  # fmt: skip
def test_blocks(monkeypatch, lanes, rows, block, chosen, overlaps):
    monkeypatch.setattr(schedule, "vector_lanes", lambda: lanes)
    assert schedule._overlapping_block(rows, block) == chosen
    assert schedule.overlaps_sooner(rows, chosen) == overlaps
