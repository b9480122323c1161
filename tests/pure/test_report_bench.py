"""Benchmark results become tables: rows measured, rows with a problem, rows measured again."""
from __future__ import annotations

import json
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "bench"


@pytest.fixture(scope="module")
def common():
    with pytest.MonkeyPatch.context() as patched:
        patched.syspath_prepend(str(BENCH))
        import common

        yield common
        for name in ("common", "tables"):
            del sys.modules[name]


@pytest.fixture(scope="module")
def tables(common):
    return sys.modules["tables"]


def way(name, median, ratio, **more):
    timing = {"rounds": 9, "median_ms": median, "iqr_ms": 0.1, "ratio": ratio}
    error = {"relative_l2": 1e-3, "within_contract": None if name == "eager" else True}
    return {"name": name, "timing": timing, "first_call_s": 3.0, "peak_bytes": 2_000_000,
            "kernels": 7, "error": error, "problem": None} | more


def row(label, ours=2.0, ways=None, case=None, **more):
    machine = {"device": "cuda", "name": "H100", "torch": "2.11", "triton": "3.6", "python": "3.12"}
    usual = [way("eager", 6.0, 3.0), way("inductor", 3.0, 1.5), way("torchweld", ours, 1.0)]
    report = {"machine": machine, "date": "2026-11-20T10:00", "ways": ways or usual}
    row = {"case": {"label": label} | (case or {}), "predicted_ms": 1.9, "report": report}
    return row | more


def written(path, *rows, command="python bench/gpu.py"):
    path.write_text(json.dumps({"command": command, "rows": rows}))
    return path


def cells(text, label):
    """Of the rows that begin with the label, in order of the tables."""
    lines = [line for line in text.splitlines() if line.startswith(f"| {label} |")]
    return [[cell.strip() for cell in line.strip("| ").split(" |")] for line in lines]


def test_a_row_holds_prediction_measurement_and_the_ratio_to_the_best(tables, tmp_path):
    text = tables.render([written(tmp_path / "a.json", row("bert"))])
    assert "H100, torch 2.11, Triton 3.6, Python 3.12, 2026-11-20." in text
    target, detail = cells(text, "bert")
    assert target == ["bert", "1.9", "2", "inductor 3", "1.50", "1.00", "7",
                      "1.0e-03 (1.0e-03)", "yes", "-"]
    assert detail == ["bert", "6", "3", "2", "3.0, 3.0", "-", "2 MB, 2 MB"]


def test_a_row_says_where_the_first_call_went(tables, tmp_path):
    measured = row("bert")
    graphs = [{"seconds": {"capture": 2.0, "rewrite": 0.25, "plan": 0.25, "compile": 1.0}},
              {"seconds": {"lower": 0.5, "compile": 1.5}}]
    measured["report"]["graphs"] = graphs
    _, detail = cells(tables.render([written(tmp_path / "a.json", measured)]), "bert")
    assert detail[5] == ("capture 2.00, lower 0.50, plan 0.50, generate 0.00, compile 2.50, "
                         "load 0.00")


@pytest.mark.parametrize(
    ("case", "ours", "missed"),
    [
        ({"at_least": 1.6}, {}, "no: time"),
        ({"at_least": 1.5}, {}, "yes"),
        ({"most_kernels": 6}, {}, "no: kernels"),
        ({"most_kernels": 7}, {}, "yes"),
        ({}, {"error": {"relative_l2": 1.0, "within_contract": False}}, "no: error"),
        ({}, {"error": None}, "no: error not checked"),
    ],
)
def test_a_target_is_met_by_time_kernels_and_error(tables, tmp_path, case, ours, missed):
    ways = [way("eager", 3.0, 1.5), way("torchweld", 2.0, 1.0, **ours)]
    text = tables.render([written(tmp_path / "a.json", row("bert", ways=ways, case=case))])
    assert cells(text, "bert")[0][-2] == missed


def test_a_row_names_the_baselines_that_it_lacks(tables, tmp_path):
    slow = way("inductor-max-autotune", 4.0, 2.0)
    refused = {"name": "liger", "timing": None, "problem": "does not apply to Bert"}
    ways = [way("eager", 6.0, 3.0), refused, way("torchweld", 2.0, 1.0)]
    rows = row("bert", ways=ways), row("llama", ways=[*ways[::2], slow, way("liger", 3.0, 1.5)])
    text = tables.render([written(tmp_path / "a.json", *rows)])
    assert cells(text, "bert")[0][-1] == "inductor-max-autotune"
    assert cells(text, "llama")[0][-1] == "-"


def test_a_row_without_eager_adds_its_ways_to_the_row_before(tables, tmp_path):
    more = [way("inductor-max-autotune", 2.4, 1.2), way("torchweld", 2.1, 1.0, kernels=9)]
    late = {"case": {"label": "gpt2"}, "problem": "not run"}
    files = [written(tmp_path / "a.json", row("bert"), row("gpt2")),
             written(tmp_path / "b.json", row("bert", ways=more), late, command="again")]
    text = tables.render(files)
    assert "`python bench/gpu.py`, `again`" in text
    assert cells(text, "bert")[0][2:7] == ["2", "inductor-max-autotune 2.4", "1.20", "1.00", "7"]
    assert cells(text, "gpt2")[0][4] == "1.50" and "not run" not in text


def test_a_problem_is_a_row_of_the_first_table_alone(tables, tmp_path):
    failed = {"case": {"label": "vit"}, "problem": "not finished within 9 s"}
    files = [written(tmp_path / "a.json", row("bert"), failed)]
    long, brief = tables.render(files), tables.render_brief(files)
    assert [r[:2] for r in cells(long, "vit")] == [["vit", "not finished within 9 s"]]
    assert "vit" not in brief
    assert cells(brief, "bert") == [["bert", "6", "inductor 3", "2", "1.50x"]]
    first = [line for line in long.partition("\n\n")[2].splitlines()[:4]]
    assert len({line.count("|") for line in first}) == 1


def test_a_case_measured_again_replaces_its_row(tables, tmp_path):
    files = [written(tmp_path / "a.json", row("bert"), row("gpt2")),
             written(tmp_path / "b.json", row("bert", ours=2.5))]
    text = tables.render(files)
    assert [r[2] for r in cells(text, "bert")] == ["2.5", "3"] and len(cells(text, "gpt2")) == 2


def test_rows_come_in_the_order_of_the_cases(tables, tmp_path):
    files = [written(tmp_path / f"{name}.json", row(name)) for name in ("vit", "gpt2", "bert")]
    for text in (render(files, ["bert", "vit"]) for render in (tables.render, tables.render_brief)):
        assert text.index("bert") < text.index("vit") < text.index("gpt2")


def test_ways_that_are_slow_to_compile_come_last(common, monkeypatch):
    asked = []

    @contextmanager
    def child(case, run, *rest):
        yield lambda seconds: asked.append((case.label, run.ways)) or {"problem": "none"}

    monkeypatch.setattr(common, "_child", child)
    ways = "eager", "inductor-max-autotune", "inductor", "torchweld"
    cases = [common.Case(name, "x", "float32") for name in ("a", "b")]
    common.run_cases(cases, common.Run("cuda", ways, 0, 9, 99), "script")
    quick, slow = ("eager", "inductor", "torchweld"), ("inductor-max-autotune", "torchweld")
    assert asked == [("a", quick), ("b", quick), ("a", slow), ("b", slow)]


def test_only_what_stands_between_the_markers_changes(tables, tmp_path):
    page = tmp_path / "page.md"
    tables.update_page("a", "first", page)
    tables.update_page("b", "second", page)
    page.write_text(page.read_text() + "\nby hand\n")
    tables.update_page("a", "third", page)
    assert page.read_text() == (
        "# Benchmarks\n\n<!-- a:begin -->\nthird\n<!-- a:end -->\n\n"
        "<!-- b:begin -->\nsecond\n<!-- b:end -->\n\nby hand\n")


def test_what_a_child_wrote_before_it_failed_is_kept(common, tmp_path):
    script = tmp_path / "child.py"
    script.write_text("""import pathlib, sys
pathlib.Path(sys.argv[-1]).write_text('{"report": {"ways": []}}')
raise MemoryError("in float64")""")
    run = common.Run("cpu", ("torchweld",), 0, 9, 9)
    (kept,) = common.run_cases([common.Case("x", "bert-base", "float32")], run, str(script))
    assert kept["report"] == {"ways": []} and kept["problem"] == "MemoryError: in float64"


def test_a_child_that_fails_or_is_late_is_a_row_with_a_problem(common, tmp_path, monkeypatch):
    script = tmp_path / "child.py"
    case, run = common.Case("x", "bert-base", "float32"), common.Run("cpu", ("torchweld",), 0, 9, 9)
    script.write_text("raise ValueError('no such thing')")
    (failed,) = common.run_cases([case], run, str(script))
    assert failed["problem"] == "ValueError: no such thing"
    (late,) = common.run_cases([case], common.Run("cpu", ("torchweld",), 0, 9, 1), str(script))
    assert late["problem"].startswith("not run")
    script.write_text("import time; time.sleep(60)")
    monkeypatch.setattr(common, "_LEAST_SECONDS", 0.0)
    (cut,) = common.run_cases([case], common.Run("cpu", ("torchweld",), 0, 0.2, 9), str(script))
    assert cut["problem"].startswith("not finished within")


def test_the_next_case_imports_while_one_is_measured(common, tmp_path):
    """Each child notes when it begins and when it is told to measure."""
    script, notes = tmp_path / "child.py", tmp_path / "notes"
    script.write_text(f"""import json, pathlib, sys
def note(what):
    with open({str(notes)!r}, "a") as file:
        file.write(what + json.loads(sys.argv[2])["label"] + " ")
note("start")
sys.stdin.readline()
if json.loads(sys.argv[2])["label"] == "a":
    while "startb" not in pathlib.Path({str(notes)!r}).read_text():
        pass
note("measure")
sys.exit("done")""")
    cases = [common.Case(name, "x", "float32") for name in ("a", "b")]
    common.run_cases(cases, common.Run("cpu", ("torchweld",), 0, 30, 60), str(script))
    found = notes.read_text().split()
    assert found.index("startb") < found.index("measurea") < found.index("measureb")
