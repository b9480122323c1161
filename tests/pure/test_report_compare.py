"""Two reports: what counts as a change, what does not, and what cannot be compared."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from report_example import example
from torchweld.cli.main import app
from torchweld.core.errors import UsageError
from torchweld.observe.record.report import Report, Timing
from torchweld.observe.record.schema import to_json
from torchweld.observe.views.compare import BETTER, SAME, TOLD, WORSE, compare

BEFORE = example()


def changed(name: str = "torchweld", **fields) -> Report:
    """The example with fields of a way changed."""
    ways = [replace(way, **fields) if way.name == name else way for way in BEFORE.ways]
    return replace(BEFORE, ways=ways)


def timed(median: float, iqr: float = 0.02, name: str = "torchweld") -> Report:
    """A way as slow as that, eager as it was: its ratio to torchweld moves with it."""
    report = changed(name, timing=Timing(41, median, iqr, 1.0, 1.0, 1.0))
    low, middle, high = (1.46 / ms for ms in (median + iqr / 2, median, median - iqr / 2))
    eager = Timing(41, 1.46, 0.03, middle, low, high)
    return with_eager(report, eager) if name == "torchweld" else report


def with_eager(report: Report, timing: Timing | None) -> Report:
    ways = [replace(w, timing=timing) if w.name == "eager" else w for w in report.ways]
    return replace(report, ways=ways)


def verdicts(after: Report, **options) -> dict[str, str]:
    return {c.what: c.verdict for c in compare(BEFORE, after, **options).changes}


def test_a_report_against_itself_is_the_same():
    found = compare(BEFORE, BEFORE)
    assert not found.regressed and not found.notes
    assert {c.verdict for c in found.changes} == {SAME, TOLD}
    assert all(c.ratio in (None, 1.0) for c in found.changes)


# The example's median is 0.96 ms, its quartiles 0.02 ms apart.
@pytest.mark.parametrize("median, iqr, verdict", [
    (1.02, 0.02, WORSE),  # 6 %
    (1.00, 0.02, SAME),  # 4 %: within the tolerance
    (1.10, 0.40, SAME),  # within its own noise
    (0.90, 0.02, BETTER),
    (0.93, 0.02, SAME),
    (0.80, 0.50, SAME),
])  # fmt: skip
def test_a_time_must_leave_both_the_tolerance_and_the_noise(median, iqr, verdict):
    after = timed(median, iqr)
    assert verdicts(after)["time of torchweld"] == verdict
    assert compare(BEFORE, after).regressed == (verdict == WORSE)


def test_the_tolerance_is_the_callers():
    assert verdicts(timed(1.02), tolerance=0.1)["time of torchweld"] == SAME
    assert verdicts(timed(1.0), tolerance=0.0)["time of torchweld"] == WORSE


def test_other_ways_are_told_not_judged():
    found = compare(BEFORE, timed(9.9, name="inductor"))
    assert not found.regressed
    told = next(c for c in found.changes if c.what == "time of inductor")
    assert (told.verdict, told.before, told.after) == (TOLD, "1.11 ms", "9.9 ms")


def slower_machine(factor: float) -> Report:
    return replace(BEFORE, ways=[
        replace(w, timing=w.timing and replace(w.timing, median_ms=factor * w.timing.median_ms))
        for w in BEFORE.ways])


@pytest.mark.parametrize("factor", [0.5, 1.4])
def test_a_time_that_changed_as_eager_s_did_is_the_machine_s(factor):
    found = compare(BEFORE, slower_machine(factor))
    assert not found.regressed and found.changes[0].verdict == SAME
    assert found.notes[0].startswith("the machine's speed")


def test_a_slowdown_counts_on_a_slower_machine_too():
    lost = Timing(41, 2.9, 0.03, 1.1, 1.08, 1.12)  # was 1.52 times torchweld's time
    assert compare(BEFORE, with_eager(slower_machine(2.0), lost)).regressed


def test_a_model_that_became_slower_is_no_slower_machine():
    slower = slower_machine(1.4)
    ways = [replace(w, bytes_moved=50_000_000) if w.name == "eager" else w for w in slower.ways]
    assert compare(BEFORE, replace(slower, ways=ways)).regressed


def test_without_eager_a_time_stands_alone():
    assert compare(BEFORE, with_eager(slower_machine(1.4), None)).regressed


def test_relative_times_do_not_mind_a_slower_machine():
    slower = slower_machine(2.0)
    assert verdicts(slower, relative_to="eager")["time of torchweld / eager"] == SAME
    lost = changed("eager", timing=Timing(41, 1.46, 0.03, 1.2, 1.18, 1.22))
    assert verdicts(lost, relative_to="eager")["time of torchweld / eager"] == WORSE
    won = changed("eager", timing=Timing(41, 1.46, 0.03, 1.9, 1.85, 1.95))
    assert verdicts(won, relative_to="eager")["time of torchweld / eager"] == BETTER


def test_memory_and_the_error_contract_are_judged():
    assert verdicts(changed(peak_bytes=7_000_000))["peak memory of torchweld"] == WORSE
    assert verdicts(changed(peak_bytes=6_100_000))["peak memory of torchweld"] == SAME
    assert verdicts(changed(peak_bytes=None))["peak memory of torchweld"] == TOLD
    ours = next(w for w in BEFORE.ways if w.name == "torchweld")
    outside = changed(error=replace(ours.error, within_contract=False))
    assert verdicts(outside)["error contract"] == WORSE
    assert compare(outside, BEFORE).changes[3].verdict == BETTER
    assert verdicts(changed(error=None))["error contract"] == TOLD


def test_kernels_that_changed_most_are_told():
    eager, ours = BEFORE.profiles
    slow = [replace(k, measured_us=2 * k.measured_us) if k.kind == "generated" else k
            for k in ours.kernels]
    found = compare(BEFORE, replace(BEFORE, profiles=[eager, replace(ours, kernels=slow)]))
    (change,) = found.kernels
    assert change.what == "gelu, mul, native_layer_norm @ layers.*"
    assert change.ratio == pytest.approx(2) and not found.regressed
    assert compare(BEFORE, BEFORE).kernels == ()
    assert compare(BEFORE, replace(BEFORE, profiles=[])).kernels == ()


def test_what_differs_beside_the_figures_is_noted():
    after = replace(BEFORE, machine=replace(BEFORE.machine, torch="2.14.0", name="Another"))
    assert compare(BEFORE, after).notes == ("device: A processor -> Another",
                                            "torch: 2.13.0 -> 2.14.0")


@pytest.mark.parametrize("after, said", [
    (replace(BEFORE, subject=replace(BEFORE.subject, target="gpt2")), "target is geglu"),
    (replace(BEFORE, subject=replace(BEFORE.subject, train=True)), "train is False"),
    (replace(BEFORE, machine=replace(BEFORE.machine, device="cuda")), "measured on cpu"),
    (changed(timing=None, problem="it broke"), "the second report has no time of torchweld: it"),
])
def test_what_cannot_be_compared_is_told(after, said):
    with pytest.raises(UsageError, match=said):
        compare(BEFORE, after)


def test_a_way_that_was_not_measured_is_told():
    with pytest.raises(UsageError, match="the first report has no time of inductor-max-autotune"):
        compare(BEFORE, BEFORE, relative_to="inductor-max-autotune")


# -- the command --


@pytest.fixture
def saved(tmp_path):
    def save(report: Report, name: str):
        path = tmp_path / name
        path.write_text(to_json(report))
        return path

    return save


def run(*arguments):
    return CliRunner().invoke(app, ["compare", *map(str, arguments)])


def test_the_exit_code_says_whether_something_is_worse(saved):
    before, worse, better = (
        saved(r, f"{n}.json") for n, r in (("a", BEFORE), ("b", timed(1.3)), ("c", timed(0.5)))
    )
    assert run(before, before).exit_code == 0
    result = run(before, worse)
    assert result.exit_code == 1 and "worse: time of torchweld" in result.stdout
    assert "+35.4 %" in result.stdout
    result = run(before, better)
    assert result.exit_code == 0 and "nothing is worse" in result.stdout
    assert run(before, worse, "--tolerance", "0.5").exit_code == 0


def test_the_comparison_as_json(saved):
    result = run(saved(BEFORE, "a.json"), saved(timed(1.3), "b.json"), "--json")
    found = json.loads(result.stdout)
    assert result.exit_code == 1 and found["regressed"] is True
    assert found["changes"][0]["what"] == "time of torchweld"
    assert found["changes"][0]["ratio"] == pytest.approx(1.3 / 0.96)


def test_bad_files_are_told_in_one_line(saved, tmp_path):
    good, bad = saved(BEFORE, "a.json"), tmp_path / "bad.json"
    old = saved(replace(BEFORE, schema_version=1), "old.json")
    bad.write_text(to_json(BEFORE)[:500])
    for path, said in ((bad, "is not valid JSON"), (old, "schema 1"), (tmp_path / "no", "No such")):
        result = run(good, path)
        assert result.exit_code == 2, result.output
        (line,) = result.stderr.strip().splitlines()
        assert line.startswith(f"torchweld: {path}") and said in line
