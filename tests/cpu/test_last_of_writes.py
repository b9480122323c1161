"""Of several elements that `scatter` writes to one place, the last stays, as in eager: threads and
vectors keep their order."""

from __future__ import annotations

import pytest
import torch

import torchweld


def rows(x, source, index):
    """Tokens into the rows of experts: one index for each row."""
    return x.scatter(0, index[:, :1].expand_as(source), source * 2) + 1


def elements(x, source, index):
    return x.scatter(0, index, source * 3)


def turned(x, source, index):
    return x.t().contiguous().scatter(1, index.t(), source.t() * 2)


def flat(x, source, index):
    return x.flatten().scatter(0, index.flatten(), source.flatten() + 1)


def of_16_bits(x, source, index):
    return torch.zeros_like(x).bfloat16().scatter(0, index, source.bfloat16())


@pytest.mark.parametrize("function", [rows, elements, turned, flat, of_16_bits])
@pytest.mark.parametrize("shape", [(7, 50, 5), (20, 4000, 130), (3, 9, 1), (300, 999, 33)])
@pytest.mark.parametrize("threads", [1, 2])
def test_they_are_eagers(function, shape, threads):
    torch.manual_seed(0)
    torch.compiler.reset()
    places, count, width = shape
    x, source = torch.randn(places, width), torch.randn(count, width)
    index = torch.randint(0, places, (count, width))
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with torch.no_grad():
            fused = torchweld.fuse(function)
            assert torch.equal(fused(x, source, index), function(x, source, index))
    finally:
        torch.set_num_threads(before)
    (record,) = torchweld.records(fused)
    assert not any("scatter" in getattr(n, "target", "") for n in record.graph.nodes)
