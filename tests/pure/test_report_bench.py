"""Benchmark results become tables: rows measured, rows with a problem, rows measured again."""
from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "bench"


@pytest.fixture(scope="module")
def common():
    spec = importlib.util.spec_from_file_location("bench_common", BENCH / "common.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def way(name, median, ratio):
    timing = {"rounds": 9, "median_ms": median, "iqr_ms": 0.1, "ratio": ratio}
    return {"name": name, "timing": timing, "first_call_s": 3.0, "peak_bytes": 2_000_000,
            "error": {"relative_l2": 1e-3}}


def row(label, ours=2.0, **more):
    machine = {"device": "cuda", "name": "H100", "torch": "2.11", "triton": "3.6", "python": "3.12"}
    ways = [way("eager", 6.0, 3.0), way("inductor", 3.0, 1.5), way("torchweld", ours, 1.0)]
    report = {"machine": machine, "date": "2026-11-20T10:00", "ways": ways}
    return {"case": {"label": label}, "report": report} | more


def written(path, *rows, command="python bench/gpu.py"):
    path.write_text(json.dumps({"command": command, "rows": rows}))
    return path


def test_a_row_holds_medians_and_the_ratio_to_the_best(common, tmp_path):
    text = common.render([written(tmp_path / "a.json", row("bert"))])
    assert "H100, torch 2.11, Triton 3.6, Python 3.12, 2026-11-20." in text
    assert "| bert | 6 | 3 | 2 | 1.50 | 3.0, 3.0 | 2 MB, 2 MB | 1.0e-03 (1.0e-03) |" in text


def test_a_problem_is_a_row_of_the_long_table_alone(common, tmp_path):
    failed = {"case": {"label": "vit"}, "problem": "not finished within 9 s"}
    files = [written(tmp_path / "a.json", row("bert"), failed)]
    long, brief = common.render(files), common.render(files, brief=True)
    assert "| vit | not finished within 9 s |" in long and "vit" not in brief
    assert "| bert | 6 | 3 | 2 | 1.50 |" in brief
    widths = {line.count("|") for line in long.splitlines() if line.startswith("|")}
    assert len(widths) == 1


def test_a_case_measured_again_replaces_its_row(common, tmp_path):
    files = [written(tmp_path / "a.json", row("bert"), row("gpt2")),
             written(tmp_path / "b.json", row("bert", ours=2.5))]
    text = common.render(files)
    assert text.count("| bert |") == 1 and "| 2.5 | 1.50 |" in text and "| gpt2 |" in text


def test_only_what_stands_between_the_markers_changes(common, tmp_path):
    page = tmp_path / "page.md"
    common.update_page("a", "first", page)
    common.update_page("b", "second", page)
    page.write_text(page.read_text() + "\nby hand\n")
    common.update_page("a", "third", page)
    assert page.read_text() == (
        "# Benchmarks\n\n<!-- a:begin -->\nthird\n<!-- a:end -->\n\n"
        "<!-- b:begin -->\nsecond\n<!-- b:end -->\n\nby hand\n")


def test_what_a_child_wrote_before_it_failed_is_kept(common, tmp_path):
    script = tmp_path / "child.py"
    script.write_text("""import pathlib, sys
pathlib.Path(sys.argv[-1]).write_text('{"ways": []}')
raise MemoryError("in float64")""")
    run = common.Run("cpu", (), 0, 9, 9)
    (kept,) = common.run_cases([common.Case("x", "bert-base", "float32")], run, str(script))
    assert kept["report"] == {"ways": []} and kept["problem"] == "MemoryError: in float64"


def test_a_child_that_fails_or_is_late_is_a_row_with_a_problem(common, tmp_path):
    script = tmp_path / "child.py"
    case, run = common.Case("x", "bert-base", "float32"), common.Run("cpu", (), 0, 9, 9)
    script.write_text("raise ValueError('no such thing')")
    (failed,) = common.run_cases([case], run, str(script))
    assert failed["problem"] == "ValueError: no such thing"
    (late,) = common.run_cases([case], common.Run("cpu", (), 0, 9, 1), str(script))
    assert late["problem"].startswith("not run")
