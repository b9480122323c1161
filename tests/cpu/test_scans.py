"""Scans with work around them: in blocks, of which only the scan itself goes one by one."""

from __future__ import annotations

import pytest
import torch

import torchweld
from torchweld.exact.verify import verify

MASK = torch.arange(200) % 3 > 0
CASES = {
    "masked": lambda x: torch.cumsum(x * MASK[: x.shape[1]], 1),
    "used again": lambda x: torch.cumsum(x.exp(), 1) * x.exp(),
    "two": lambda x: torch.cumsum(x.sigmoid(), 1) / torch.cumprod(1 + 0.01 * x.cos(), 1),
    "one of another": lambda x: torch.cumsum(torch.cumsum(x.sigmoid(), 1), 1),
    "kept for a second pass": lambda x: (y := torch.cumsum(x.exp(), 1)) / y.sum(1, keepdim=True),
    "and summed": lambda x: torch.cumsum(x.exp(), 1).sin().sum(1),
    "from the end": lambda x: torch.cumsum(x.flip(1), 1).flip(1) * 2,
    "flipped after": lambda x: torch.cumsum(x, 1).flip((0, 1)) + x,
    "rounded": lambda x: torch.cumsum(torch.sigmoid(x), 1).relu(),
}


# A block has 64 columns; its edges are those of three cases.
COLUMNS = {n: (1, 63, 64, 65, 200) if n in ("masked", "from the end", "two") else (1, 65, 200)
           for n in CASES}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "columns"), [(name, n) for name in CASES for n in COLUMNS[name]]
)
def test_scans(name, columns):
    function = CASES[name]
    torch.compiler.reset()
    x = torch.randn(5, columns, generator=torch.Generator().manual_seed(columns))
    x = x.bfloat16() if name == "rounded" else x
    fused = torchweld.fuse(lambda x: function(x))
    report = verify(lambda x: function(x), fused, x, train=columns == 65)
    assert report.ok, str(report)


def test_a_scan_from_the_end_is_one_kernel():
    torch.compiler.reset()
    fused = torchweld.fuse(lambda x: torch.cumsum(x.flip(1), 1).flip(1))
    fused(torch.randn(3, 100))
    (record,) = torchweld.records(fused)
    assert len(record.graph.nodes) == 1


def test_blocks_are_taken_where_there_is_work():
    fused = torchweld.fuse(lambda x: torch.cumsum(x.exp(), 1))
    fused(torch.randn(3, 100))
    (record,) = torchweld.records(fused)
    assert "to = end" in next(iter(record.bundles.values())).sources[0].text


@pytest.mark.parametrize("running", [torch.cumsum, torch.logcumsumexp, lambda x, d: x.cummax(d)[0]])
def test_a_short_scan_that_is_reduced_is_not_written_out(running):
    torch.compiler.reset()
    fused, x = torchweld.fuse(lambda x: running(x.sin(), 0).sum(0)), torch.linspace(-1, 1, 455)
    report = verify(lambda x: running(x.sin(), 0).sum(0), fused, x.view(7, 65), train=False)
    assert report.ok, str(report)
    assert len(torchweld.records(fused)) == 1  # none is left to eager


@pytest.mark.parametrize("shape", [(2, 13, 4), (1, 33, 40)])
def test_scans_of_rows_that_a_second_pass_reads(shape):
    """Several rows are scanned abreast: each has its own values to keep."""

    def scaled(x):
        y = torch.cumsum(x, 1) * 0.1
        return y * y.mean(1, keepdim=True)

    torch.compiler.reset()
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    report = verify(scaled, torchweld.fuse(lambda x: scaled(x)), x)
    assert report.ok, str(report)


BACKWARDS = {
    "sums less themselves": lambda x, m: (x * m).flip(1).cumsum(1).flip(1) - x * m,
    "maxima and what is scaled": lambda x, m: (x.flip(1).cummax(1)[0].flip(1) + 1, x * m),
    "logarithms of sums": lambda x, m: (x * 3).flip(1).logcumsumexp(1).flip(1) * m,
    "products, one by one": lambda x, m: (x / 4).flip(1).cumprod(1).flip(1),
    "of sums": lambda x, m: x.flip(1).cumsum(1).cummax(1)[0].flip(1),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("length", [1, 63, 64, 65, 130, 1001])
@pytest.mark.parametrize("name", BACKWARDS)
def test_from_the_end(name, length, dtype):
    """Blocks of them are loaded and stored as memory lies, and scanned the other way."""
    torch.manual_seed(0)
    torch.compiler.reset()
    x, mask = torch.randn(5, length, dtype=dtype), torch.rand(5, length) > 0.3
    function = BACKWARDS[name]
    with torch.no_grad():
        found, wanted = torchweld.fuse(function)(x, mask), function(x.double(), mask)
    found, wanted = ([t] if isinstance(t, torch.Tensor) else t for t in (found, wanted))
    tolerance = 1e-4 if dtype == torch.float32 else 1e-12
    for a, b in zip(found, wanted):
        torch.testing.assert_close(a.double(), b, rtol=tolerance, atol=tolerance)


def test_loops_from_the_end_follow_memory():
    torch.compiler.reset()
    fused = torchweld.fuse(BACKWARDS["sums less themselves"])
    with torch.no_grad():
        fused(torch.randn(9, 300), torch.rand(9, 300) > 0.5)
    (record,) = torchweld.records(fused)
    assert any("tw_reversed(s" in b.sources[0].text for b in record.bundles.values())
