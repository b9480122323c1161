"""A report as data and as tables, from a report written by hand."""
from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from torchweld.core.errors import UsageError
from torchweld.core.units import bytes_text, ms_text, seconds_text
from torchweld.profiling.data import Place
from torchweld.report import schema
from torchweld.report.data import (
    SCHEMA_VERSION,
    Apart,
    Error,
    GraphPart,
    Group,
    KernelError,
    Machine,
    Refused,
    Report,
    Source,
    Subject,
    Timing,
    Way,
)
from torchweld.report.tables import SHOWN, show

ADD, MUL = Place("aten.add.Tensor", "layer.0", "model.py:7"), Place("aten.mul.Tensor", "layer.0")
ADDMM = Place("aten.addmm.default", "layer.0.linear", "linear.py:9")
REPORT = Report(
    schema_version=SCHEMA_VERSION,
    date="2026-11-20T12:00:00+00:00",
    machine=Machine("cpu", "A processor", 4, "3.12.1", "2.13.0", "0.1.0", None),
    subject=Subject("bert-base", ["int64[8, 128]"], "float32", 109_500_000, False),
    ways=[
        Way("eager", timing=Timing(9, 730.1, 12.5, 1.31, 1.29, 1.34), kernels=312,
            bytes_moved=1_200_000_000, peak_bytes=40_000_000, first_call_s=0.7,
            error=Error(3.1e-7, 2e-6, None)),
        Way("inductor-reduce-overhead", problem="RuntimeError: no CUDA graphs here"),
        Way("torchweld", timing=Timing(9, 557.0, 3.5, 1.0, 1.0, 1.0), kernels=98,
            bytes_moved=900_000_000, peak_bytes=30_000_000, first_call_s=4.2,
            first_call_cache="cold", error=Error(2.9e-7, 1.9e-6, False)),
    ],
    graphs=[GraphPart(
        "graph0", "inference",
        [Group("k0", [ADD, MUL, ADD], 900, 300, 12.5, 12, [Source("cpp", "tw_1", "int x;")],
               KernelError(1e-7, 2e-7, 1e-6, 2e-6))],
        3, {"aten.addmm.default": 72},
        [Refused("one side is a library call", 40, 123_456_789, "addmm_1 -> gelu_1", 80.5,
                 "Nothing.", [Apart(ADDMM, MUL, "aten.addmm.default", 40, 123_456_789)])],
        ["fallback: k7: g++ failed"], {"plan": 0.4})],
    warnings=["graph1 runs unfused"],
)


def shown(report: Report, width: int = 80) -> str:
    console = Console(width=width, record=True, file=io.StringIO(), no_color=True)
    show(report, console)
    return console.export_text()


def test_json_round_trip():
    assert schema.from_json(schema.to_json(REPORT)) == REPORT


def test_json_with_a_wrong_field_is_refused():
    text = schema.to_json(REPORT).replace('"rounds": 9', '"rounds": "many"')
    with pytest.raises(UsageError, match=r"wrong at ways\.0\.timing\.rounds: "):
        schema.from_json(text)


@pytest.mark.parametrize("text, said", [
    (schema.to_json(REPORT)[:-40], "it is no JSON"),
    (schema.to_json(replace(REPORT, schema_version=1)), "a report of schema 1; this torchweld"),
    ("[]", "it is no report"),
    ("{}", "it is no report"),
])
def test_what_is_no_report_of_this_version_is_told(text, said, tmp_path):
    path = tmp_path / "r.json"
    path.write_text(text)
    with pytest.raises(UsageError, match=f"r.json: .*{said}"):
        schema.read_json(path)


def test_a_file_that_cannot_be_read_is_told(tmp_path):
    (tmp_path / "b").write_bytes(b"\xff\xfe")
    for path, why in ((tmp_path / "none", "No such file"), (tmp_path / "b", "it is no text")):
        with pytest.raises(UsageError, match=f"cannot be read: {why}"):
            schema.read_json(path)


def test_the_written_file_is_whole_or_the_old_one(tmp_path):
    path = tmp_path / "r.json"
    schema.write_json(REPORT, path)
    schema.write_json(replace(REPORT, date="later"), path)
    assert schema.from_json(path.read_text()).date == "later"
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(UsageError, match="cannot be written"):
        schema.write_json(REPORT, tmp_path)
    assert list(tmp_path.iterdir()) == [path]


def test_the_schema_page_is_in_date():
    page = Path(__file__).parents[2] / "docs" / "report-schema.md"
    make = f"python -m torchweld.report.schema > {page}"
    assert page.read_text() == schema.markdown(), f"run {make}"


def test_the_schema_page_names_every_field():
    import json

    def names(value):
        if isinstance(value, dict):
            for key, inner in value.items():
                yield key
                yield from names(inner)
        elif isinstance(value, list):
            for inner in value:
                yield from names(inner)

    data = json.loads(schema.to_json(REPORT))
    data["graphs"][0].update(library_calls={}, seconds={})
    assert all(f"| `{name}` |" in schema.markdown() for name in names(data))


def test_tables_fit_eighty_columns_and_hold_every_figure():
    text = shown(REPORT)
    assert all(len(line.rstrip()) <= 80 for line in text.splitlines())
    for figure in ["1.31", "730", "12.5", "312", "1.2 GB", "30 MB", "3.1e-07", "4.20 s (cold)",
                   "no CUDA graphs here", "2 add, mul", "12", "72 x addmm",
                   "one side is a library call", "123 MB", "addmm_1 -> gelu_1", "g++ failed",
                   "graph1 runs unfused", "torchweld is outside the error contract"]:
        assert figure in text, figure


def test_long_lists_are_cut_with_a_word_about_the_rest():
    groups = [replace(REPORT.graphs[0].groups[0], kernel=f"k{i}") for i in range(SHOWN + 4)]
    report = replace(REPORT, graphs=[replace(REPORT.graphs[0], groups=groups)])
    assert "and 4 more (--json FILE has all)" in shown(report)


@pytest.mark.parametrize("count, text", [(None, "-"), (0, "0 B"), (999, "999 B"), (1000, "1 kB"),
                                         (999_600, "1 MB"), (1_234_567, "1.23 MB"),
                                         (5 * 10**15, "5e+03 TB")])
def test_bytes(count, text):
    assert bytes_text(count) == text


def test_times():
    assert (ms_text(0.01234), ms_text(730.12), ms_text(12.34)) == ("0.0123", "730", "12.3")
    assert (seconds_text(None), seconds_text(0.123), seconds_text(43.2)) == ("-", "0.12 s", "43 s")
