"""The errors that a report tells, of a way whose results are wrong."""

from __future__ import annotations

from dataclasses import replace

import torch

from report_example import example
from torchweld.observe.report.build import with_errors
from torchweld.observe.report.measure import Prepared, Workload


class Shifted(torch.nn.Module):
    """The second output is off by a hundredth."""

    def __init__(self, by: float) -> None:
        super().__init__()
        self.by = by

    def forward(self, x):
        return x * 2, x.exp() * (1 + self.by)


def checked(by: float):
    torch.manual_seed(0)
    workload = Workload(Shifted(0.0), (torch.randn(50, 4),), {}, False, "cpu")
    ready = {"torchweld": Prepared("torchweld", Shifted(by), 0.0, 0, False)}
    report = with_errors(replace(example(), warnings=[]), ready, workload, lambda *_: None)
    (way,) = (w for w in report.ways if w.name == "torchweld")
    return way.error.within_contract, [w for w in report.warnings if "contract" in w]


def test_what_is_outside_the_contract_is_named():
    within, (warning,) = checked(by=0.01)
    assert not within
    assert warning.startswith("torchweld is outside the contract: [1]: relative L2 error")


def test_what_is_inside_is_not():
    assert checked(by=0.0) == (True, [])
