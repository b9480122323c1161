"""A report as data and as tables, from a report written by hand."""
from __future__ import annotations

import io
from dataclasses import fields, replace
from pathlib import Path

import pytest
from rich.console import Console

from report_example import example
from torchweld.core.errors import UsageError
from torchweld.core.units import bytes_text, ms_text, seconds_text
from torchweld.observe.record import schema
from torchweld.observe.record.profile import Place, Profile
from torchweld.observe.record.report import Made, Report
from torchweld.observe.views.report import SHOWN, show

REPORT = example()


def shown(report: Report, width: int = 80) -> str:
    console = Console(width=width, record=True, file=io.StringIO(), no_color=True)
    show(report, console)
    return console.export_text()


def test_json_round_trip():
    assert schema.from_json(schema.to_json(REPORT)) == REPORT


def test_json_with_a_wrong_field_is_refused():
    text = schema.to_json(REPORT).replace('"rounds": 41', '"rounds": "many"')
    with pytest.raises(UsageError, match=r"wrong at ways\.0\.timing\.rounds: "):
        schema.from_json(text)


@pytest.mark.parametrize("text, said", [
    (schema.to_json(REPORT)[:-40], "it is not valid JSON"),
    (schema.to_json(replace(REPORT, schema_version=1)), "a report of schema 1; this torchweld"),
    ('{"schema_version": 1, "launches": []}', "it is a profile, not a report"),
    ("[]", "it is not a report"),
    ("{}", "it is not a report"),
])
def test_what_is_no_report_of_this_version_is_told(text, said, tmp_path):
    path = tmp_path / "r.json"
    path.write_text(text)
    with pytest.raises(UsageError, match=f"r.json: .*{said}"):
        schema.read_json(path)


def test_a_file_that_cannot_be_read_is_told(tmp_path):
    (tmp_path / "b").write_bytes(b"\xff\xfe")
    for path, why in ((tmp_path / "none", "No such file"), (tmp_path / "b", "it is not text")):
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
    make = f"python -m torchweld.observe.record.schema > {page}"
    assert page.read_text() == schema.markdown(), f"run {make}"


def test_the_schema_page_names_every_record_and_field():
    records, page = schema.records_in(Report), schema.markdown()
    assert {Report, Profile, Place, Made} < set(records)
    for record in records:
        section = page.partition(f"## {record.__name__}\n")[2].partition("\n## ")[0]
        assert all(f"| `{field.name}` |" in section for field in fields(record)), record


def test_tables_fit_eighty_columns_and_hold_every_figure():
    ours = REPORT.ways[-1]
    outside = replace(ours, error=replace(ours.error, within_contract=False))
    text = shown(replace(REPORT, ways=[*REPORT.ways[:-1], outside]))
    assert all(len(line.rstrip()) <= 80 for line in text.splitlines())
    for figure in ["1.52", "1.46", "0.03", "24", "41 MB", "6 MB", "2.9e-07", "6.20 s (cold)",
                   "no <b>autotuning</b> here", "gelu, mul, native_layer_norm", "38.5", "2 mul",
                   "6 x addmm", "one side is a library call", "12.6 MB", "addmm -> gelu",
                   "kept twice", "graph1 runs unfused", "torchweld is outside the error contract"]:
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
