"""A report made on a GPU: Triton sources, errors of kernels alone, profiles, the page."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from torchweld.cli.main import app
from torchweld.observe.record import schema

TARGET = """
import torch
def make():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.GELU(), torch.nn.LayerNorm(300)), torch.randn(257, 300)
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The report as data, and its page."""
    folder = tmp_path_factory.mktemp("report")
    target, page, data = (folder / name for name in ("mine.py", "page.html", "report.json"))
    target.write_text(TARGET)
    asked = ["report", f"{target}:make", "--device", "cuda", "--dtype", "bfloat16", "--against",
             "eager", "--seconds", "0", "--html", str(page), "--json", str(data)]  # fmt: skip
    result = CliRunner().invoke(app, asked)
    assert result.exit_code == 0, result.output
    return schema.read_json(data), page.read_text()


def test_a_fused_kernel_has_its_source_and_its_error(made):
    report, page = made
    (group,) = report.graphs[0].groups
    assert group.sources[0].language == "triton" and "Generated Triton" in page
    assert 0 < group.error.fused_l2 <= 1.5 * group.error.aten_l2 < 2e-2


def test_both_ways_are_profiled(made):
    report, page = made
    eager, ours = report.profiles
    assert (eager.way, ours.way) == ("eager", "torchweld")
    tied = [[k for k in p.kernels if k.places] for p in (eager, ours)]  # not a recording's copies
    assert len(tied[0]) == 2 and len(tied[1]) == 1
    assert all(kernel.measured_us > 0 for kernel in ours.kernels)
    assert 'data-way="eager"' in page and 'data-way="torchweld"' in page


def test_energy_is_counted_or_said_to_be_unavailable(made):
    report, page = made
    for profile in report.profiles:
        assert (profile.energy.joules is None) == (profile.energy.problem is not None)
    assert "saved a call" in page or "Unavailable: " in page
