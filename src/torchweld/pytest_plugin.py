"""A pytest plugin: a fixture that says whether a model, fused, keeps the error contract, and
whether it is as fast as a stored report says that it was.

Torch is imported when the fixture is used, so that other test suites pay nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from torchweld.observe.record.report import Report


def pytest_addoption(parser: pytest.Parser) -> None:
    """--torchweld-update, --torchweld-seconds, --torchweld-tolerance."""
    group = parser.getgroup("torchweld")
    group.addoption("--torchweld-update", action="store_true",
                    help="Write the stored reports of not_slower anew. Nothing is compared.")
    group.addoption("--torchweld-seconds", type=float, default=5.0, metavar="S",
                    help="Time budget of not_slower for timing, in seconds. Default: 5.")
    group.addoption("--torchweld-tolerance", type=float, default=0.05, metavar="T",
                    help="not_slower fails if the change is larger than this and larger than the "
                    "noise. Default: 0.05.")


@pytest.fixture
def torchweld_check(request: pytest.FixtureRequest) -> Check:
    """`within_contract` and `not_slower` of a model."""
    option = request.config.getoption
    return Check(Path(request.path).parent, request.node.name, option("--torchweld-update"),
                 option("--torchweld-seconds"), option("--torchweld-tolerance"))  # fmt: skip


@dataclass(frozen=True)
class Check:
    """What the fixture `torchweld_check` gives a test. `folder`: the test file's; paths of stored
    reports are relative to it. `tolerance`: a share of the time. `seconds`: for timing."""

    folder: Path
    test: str
    update: bool
    seconds: float
    tolerance: float

    def within_contract(
        self, model: Any, example_inputs: Any, *, train: bool = False, **options: Any
    ) -> None:
        """Fails unless fused results keep the error contract: errors against float64 of at most a
        fixed multiple of eager's. `example_inputs`: as `torchweld.fuse` takes them. `train`: check
        gradients, too. `options`: as `torchweld.fuse` takes them."""
        import torchweld

        fused = torchweld.fuse(model, None if train else example_inputs, **options)
        found = torchweld.verify(model, fused, example_inputs, train=train)
        if not torchweld.records(fused):
            pytest.fail("nothing was fused: the model runs in eager", pytrace=False)
        if not found.ok:
            pytest.fail(f"outside the error contract\n{found}", pytrace=False)

    def not_slower(
        self, model: Any, example_inputs: Any, stored: str | Path, *, train: bool = False,
        relative_to: str | None = "eager",
    ) -> None:
        """Times eager and the fused model in turn. Fails if the fused model is slower than in the
        report `stored` (JSON), by more than tolerance and noise, or needs more memory.

        `relative_to`: judge the time divided by eager's, which works on other machines than the
        report's, too. None: judge the time itself. `train`: `model` returns the loss. The test is
        skipped, with the reason, if the machine is too busy to judge. It fails if there is no
        stored report: `pytest --torchweld-update` writes it."""
        path = self.folder / stored
        if not self.update and not path.is_file():
            pytest.fail(f"there is no stored report {path}: run pytest --torchweld-update",
                        pytrace=False)
        self._judge(path, _report(self.test, model, example_inputs, train, self.seconds),
                    relative_to)  # fmt: skip

    def _judge(self, path: Path, now: Report, relative_to: str | None) -> None:
        from torchweld.observe.record.schema import read_json, write_json
        from torchweld.observe.views.compare import compare

        if self.update:
            write_json(now, path)
            return
        found = compare(read_json(path), now, self.tolerance, relative_to)
        worse = [f"{c.what}: {c.before} before, {c.after} now" for c in found.changes
                 if c.verdict == "worse"]
        if worse and (busy := _busy(now)):
            pytest.skip(f"inconclusive: {busy}")
        if worse:
            pytest.fail("\n".join(["worse than the stored report:", *worse]), pytrace=False)


def _report(name: str, model: Any, example_inputs: Any, train: bool, seconds: float) -> Report:
    """Of eager and torchweld."""
    from torchweld.exact.trees import as_arguments
    from torchweld.observe.measure.traffic import tensors_in
    from torchweld.observe.report.build import Plan, build_report
    from torchweld.observe.report.measure import Workload

    args, kwargs = as_arguments(example_inputs)
    on_gpu = any(t.is_cuda for t in [*model.parameters(), *tensors_in((args, kwargs))])
    workload = Workload(model, args, kwargs, train, "cuda" if on_gpu else "cpu")
    return build_report(Plan(name, workload, ["eager", "torchweld"], seconds), lambda *_: None)


def _busy(report: Report) -> str:
    """Why the times mean nothing, empty where they do."""
    from torchweld.observe.record.profile import LEAST_SHARE

    shares = [w.timing.processor_share for w in report.ways if w.timing]
    known = [share for share in shares if share is not None]
    if known and min(known) < LEAST_SHARE:
        return f"the process had {min(known):.0%} of the processor time that it asked for"
    return ""
