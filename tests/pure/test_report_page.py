"""The page's structure, read by a parser; tests/cpu/test_page_browser.py drives it."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from report_example import HOSTILE, LAYERS, example
from torchweld.core.units import general
from torchweld.observe.record.profile import Place
from torchweld.observe.record.report import Source
from torchweld.observe.views.explain import Explanation
from torchweld.observe.views.page.figures import MOST_LAUNCHES
from torchweld.observe.views.page.render import (
    asset,
    explanation_fragment,
    explanation_page,
    report_page,
)
from torchweld.observe.views.page.units import (
    bytes_unit,
    duration_text,
    flops_unit,
    joules_text,
    time_unit,
    us_text,
)
from torchweld.observe.views.rows import group_times, kernel_rows, made_by_name, module_rows

VOID = {"meta", "link", "input", "br", "hr", "img"}
RAW = ("script", "style")


class Page(HTMLParser):
    """Elements with their attributes; visible text; the text of scripts. Fails on tags that do not
    nest."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict]] = []
        self.words, self.scripts, self._open = [], [], []
        self.feed(html)
        self.close()
        assert not self._open, f"never closed: {self._open}"

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag):
        assert self._open and self._open[-1] == tag, f"</{tag}> in {self._open[-5:]}"
        self._open.pop()

    def handle_data(self, data):
        inside = self._open[-1] if self._open else ""
        (self.scripts if inside in RAW else self.words).append(data)

    def all(self, tag: str) -> list[dict]:
        return [attributes for name, attributes in self.elements if name == tag]

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


@pytest.fixture(scope="module")
def html() -> str:
    return report_page(example())


@pytest.fixture(scope="module")
def page(html) -> Page:
    return Page(html)


def test_every_part_is_there(page):
    sections = [a["id"] for a in page.all("section")]
    assert sections == ["headline", "strip", "ways", "timelines", "roofline", "kernels", "modules",
                        "groups", "refusals", "memory", "energy", "about"]
    links = [a["href"][1:] for a in page.all("a")]
    assert set(links) == {*sections, "main"}


@pytest.mark.parametrize("told", [
    "1.52x faster than eager", "between 1.49 and 1.56", "1.16x faster than inductor",
    "no <b>autotuning</b> here", "41 MB → to 27 MB",
    "within the error contract", "graph1 runs unfused",  # headline
    "busy for 1421 µs of the 1672 µs", "6 × 123 µs",
    "gelu + mul + native_layer_norm 18 → to 6 kernels",
    "682.7 → to 233.7 µs", "449.0 µs saved",  # the strips
    "20 GB/s from memory", "400 G flop/s of matrix products in float32",
    "median of |log(measured / predicted)| is 0.10", "96 % are within a factor of two",
    "gelu, mul, native_layer_norm 6 ×", "73.0 µs saved by each (38.5 µs predicted)",
    "model.py:13",  # groups
    "relative L2 9.0e-08, largest 8.0e-07", "111 µs → to 38.0 µs",
    "Made by pointwise_reduce/cpu , 36.2 µs (predicted) rows <of> 512; not gemm/cpu: no sum",
    "One side is a library call 6 pairs 12.6 MB at stake costs 1258 µs", "Nothing in most models.",
    "float32[64, 2048] temporary gelu layers.2, model.py:12",  # memory
    "61 mJ in eager and 38 mJ fused: 23 mJ saved a call",
    "torchweld report geglu --html page.html", "weights and inputs: 0", "lower 210 ms",
])  # fmt: skip
def test_every_figure_is_told(page, told):
    assert told in page.text


def test_the_table_of_kernels_tells_what_makes_the_generated_ones():
    """On a GPU a profile has the names of functions; a forward's and a backward's may be one."""
    report = example()
    made = made_by_name(report.graphs)
    rows = kernel_rows(report.profiles[1], made=made)
    assert [row.made and row.made.template for row in rows] == [None, "pointwise_reduce/cpu"]
    assert made["forward", "tw_1"] is made["forward", "fused_gelu_mul_norm_3"]
    assert ("backward", "tw_1") not in made


def test_nothing_is_asked_of_a_network(page, html):
    policy = next(a["content"] for a in page.all("meta") if "http-equiv" in a)
    assert policy.startswith("default-src 'none'")
    outside = [a for _, a in page.elements for name in ("src", "href") if "//" in a.get(name, "")]
    assert not outside and "@import" not in html


def test_text_of_models_and_sources_stays_text(page, html):
    assert HOSTILE in page.text
    assert "<script>alert" not in html and "<b>autotuning" not in html
    hostile = replace(example(), subject=replace(example().subject, target="</title><img src=x>"))
    assert not [a for a in Page(report_page(hostile)).all("img") if a]


def test_names_of_kernels_stay_data():
    report = example()
    profile = report.profiles[0]
    kernel = replace(profile.kernels[0], name=HOSTILE)
    report = replace(report, profiles=[replace(profile, kernels=[kernel], launches=[])])
    html = report_page(report)
    assert "<script>alert" not in html and HOSTILE in Page(html).text


def test_plots_have_their_data(page):
    (data,) = [json.loads(s) for s in page.scripts if s.startswith('{"roofline"')]
    eager, ours = data["profiles"]
    assert [p["way"] for p in (eager, ours)] == ["eager", "torchweld"]
    assert len(eager["launches"]) == 4 * LAYERS and len(ours["kernels"]) == 2 * LAYERS
    assert data["roofline"]["products"] == {"float32": 4e11}
    assert ours["kernels"][1] == [
        "fused_gelu_mul_norm", "generated", "gelu, mul, native_layer_norm", "layers.0", 1]
    assert [(p[0], p[4]) for p in ours["points"]] == [
        ("addmm", LAYERS), ("gelu, mul, native_layer_norm", LAYERS)]
    assert eager["memory"]["peak"] == 9_000_000  # the one of the table, with what is kept


def test_a_long_timeline_is_cut_and_says_so():
    report = example()
    profile = report.profiles[0]
    launches = profile.launches * (MOST_LAUNCHES // len(profile.launches) + 1)
    html = Page(report_page(replace(report, profiles=[replace(profile, launches=launches)])))
    (data,) = [json.loads(s) for s in html.scripts if s.startswith('{"roofline"')]
    assert len(data["profiles"][0]["launches"]) == MOST_LAUNCHES < len(launches)
    assert f"of which the first {MOST_LAUNCHES} are drawn" in html.text


def test_headings_sort_and_tell_it(page):
    headings = [a for a in page.all("th") if "aria-sort" in a]
    assert len(headings) > 15 and all(a["aria-sort"] == "none" for a in headings)
    assert Counter(tag for tag, _ in page.elements)["button"] >= len(headings)


def test_controls_and_figures_have_names(page):
    assert all(a.get("aria-label") for a in page.all("figure"))
    labels = Counter(tag for tag, _ in page.elements)
    assert labels["label"] == labels["input"] + labels["select"]
    scrolled = [a for a in page.all("div") if "scroll" in a.get("class", "")]
    assert len(scrolled) == 3 and all(a["tabindex"] == "0" and a["aria-label"] for a in scrolled)
    assert [a["tabindex"] for a in page.all("figure") if "timeline" in a["class"]] == ["0", "0"]


def test_ids_are_unique(page):
    ids = Counter(a["id"] for _, a in page.elements if "id" in a)
    assert max(ids.values()) == 1


def test_kernels_of_layers_are_one_row_and_misses_are_marked():
    eager = kernel_rows(example().profiles[0])
    gelu = next(row for row in eager if row.operations == "gelu")
    assert (gelu.calls, gelu.module, gelu.source) == (LAYERS, "layers.*", "model.py:12")
    assert gelu.measured_us == pytest.approx(60 * (LAYERS + 0.01 * sum(range(LAYERS))))
    assert gelu.ratio == pytest.approx(2.05) and gelu.missed
    assert [row.missed for row in eager].count(True) == 1
    assert sum(row.share for row in eager) == pytest.approx(1)
    assert [row.measured_us for row in eager] == sorted(r.measured_us for r in eager)[::-1]
    fused = next(row for row in kernel_rows(example().profiles[1]) if row.kind == "generated")
    assert (fused.name, fused.calls) == ("fused_gelu_mul_norm", LAYERS)


def test_a_miss_that_is_small_is_not_marked():
    profile = example().profiles[0]
    all_worst = replace(profile.accuracy, worst=[k.id for k in profile.kernels])
    marked = [row.operations for row in kernel_rows(replace(profile, accuracy=all_worst))
              if row.missed]
    assert marked == ["gelu"]  # the others are within MISS


def test_another_way_outside_the_contract_is_marked_and_explained():
    report = example()
    ways = [replace(w, error=replace(w.error, within_contract=False)) if w.name == "inductor" else w
            for w in report.ways]
    text = Page(report_page(replace(report, ways=ways))).text
    assert "1.8e-06 outside" in text and "Other ways make no such promise" in text
    assert "make no such promise" not in Page(report_page(report)).text


def test_what_is_not_known_is_not_guessed():
    profile = example().profiles[0]
    first, *rest = profile.kernels
    unknown = replace(first, predicted_us=None, bytes=None, limit_share=None)
    (row,) = kernel_rows(replace(profile, kernels=[unknown]))
    assert (row.predicted_us, row.ratio, row.bytes, row.limit_share) == (None,) * 4
    assert kernel_rows(replace(profile, kernels=[])) == []
    report = replace(example(), profiles=[replace(profile, kernels=[unknown, *rest])])
    assert Page(report_page(report)).text


def test_modules_before_and_after():
    whole, layers = module_rows(*example().profiles)
    assert (whole.path, whole.depth, layers.path, layers.count) == (
        "(whole model)", 0, "layers.*", LAYERS)
    assert layers.saved_us == pytest.approx(whole.saved_us)
    alone = module_rows(None, example().profiles[1])
    assert alone[0].before_us is None and alone[0].saved_us is None


def test_times_of_a_group_are_those_of_its_operations():
    (group, other), profiles = example().graphs[0].groups, example().profiles
    assert group_times(group, "forward", *profiles) == (pytest.approx(111), pytest.approx(38))
    assert group_times(group, "backward", *profiles) == (None, None)
    assert group_times(other, "forward", None, None) == (None, None)
    elsewhere = replace(other, operations=[Place("aten.add.Tensor", "nowhere")])
    assert group_times(elsewhere, "forward", *profiles) == (None, None)


def test_a_group_has_its_share_of_what_a_module_does_more_often():
    group, (eager, ours) = example().graphs[0].groups[0], example().profiles
    twice = replace(eager, kernels=eager.kernels + [
        replace(k, id=99 + k.id) for k in eager.kernels if "gelu" in k.name])
    assert group_times(group, "forward", twice, ours)[0] == pytest.approx(111)
    helper = replace(eager.kernels[1], id=200, measured_us=7.0, bytes=None)  # of the same call
    more = replace(eager, kernels=[*eager.kernels, helper])
    assert group_times(group, "forward", more, ours)[0] == pytest.approx(118)


def test_a_long_source_is_shown_without_marks():
    source = Source("cpp", "k", "int a = b < c;\n" * 2000)
    graph = example().graphs[0]
    group = replace(graph.groups[0], sources=[source])
    html = report_page(replace(example(), graphs=[replace(graph, groups=[group])]))
    assert len(html) < len(report_page(example())) + 2 * len(source.text)
    assert Page(html).text.count("int a = b < c;") == 2000


@pytest.mark.parametrize("language, said", [("cpp", "C++"), ("triton", "Triton"),
                                            ("gluon", "Gluon")])
def test_every_language_of_a_source_is_shown(language, said):
    graph = example().graphs[0]
    group = replace(graph.groups[0], sources=[Source(language, "k", "x = 1")])
    page = Page(report_page(replace(example(), graphs=[replace(graph, groups=[group])])))
    assert f"Generated {said}: k" in page.text


@pytest.mark.parametrize("path, said", [
    ("model.layers.11.mlp", "model.layers.*.mlp"), ("0.conv1", "*.conv1"), ("3", "*"),
    ("block2.bn1", "block2.bn1"), ("", ""), ("a.0.1.b", "a.*.*.b"),
])  # fmt: skip
def test_layers_alike_have_one_path(path, said):
    assert general(path) == said


def test_a_report_without_profiles_has_no_empty_parts():
    page = Page(report_page(replace(example(), profiles=[])))
    sections = {a["id"] for a in page.all("section")}
    assert sections == {"headline", "ways", "groups", "refusals", "about"}
    assert "not measured for this kernel" in page.text  # the second group has no error


def test_energy_that_is_not_counted_is_said_so():
    assert "Unavailable: this device counts no energy." in Page(report_page(example(False))).text


def test_a_model_in_eager_is_said_so():
    page = Page(report_page(replace(example(), graphs=[])))
    assert "the model runs in eager" in page.text and "No fusion was refused" in page.text


def test_an_explanation_has_three_forms():
    explanation = Explanation(tuple(example().graphs))
    page, cell = explanation.to_html(), explanation._repr_html_()
    assert page == explanation_page(explanation) and cell == explanation_fragment(explanation)
    for html in (page, cell):
        assert "One side is a library call" in Page(html).text and "tw_1" in html
    assert "<script" not in cell and "body {" not in cell
    assert explanation.to_dict()["graphs"][0]["groups"][0]["sources"][0]["name"] == "tw_1"
    assert "model.py:12" in str(explanation)


@pytest.mark.parametrize("name", ["tokens.css", "parts.css"])
def test_style_of_a_cell_touches_nothing_else(name):
    style = re.sub(r"/\*.*?\*/", "", asset(name), flags=re.S)
    selectors = re.findall(r"^\s*([^{}]+?)\s*\{", style.replace("}", "}\n"), re.M)
    rules = [s for s in selectors if not s.startswith("@")]
    assert len(rules) >= 3
    assert all(".torchweld" in part for rule in rules for part in rule.split(","))


@pytest.mark.parametrize("us, said", [(None, "-"), (0, "0 µs"), (0.034, "0.03 µs"),
                                      (3.456, "3.46 µs"), (45.67, "45.7 µs"), (9991, "9991 µs"),
                                      (12_345, "12.3 ms"), (-2.5, "-2.50 µs")])
def test_microseconds(us, said):
    assert us_text(us) == said


def test_durations():
    assert (duration_text(0.0123), duration_text(0.999), duration_text(12.3)) == (
        "12.3 ms", "999 ms", "12 s")


def test_joules():
    assert (joules_text(None), joules_text(0.0381), joules_text(12.3)) == ("-", "38.1 mJ", "12.3 J")


@pytest.mark.parametrize("unit, values, name, said", [
    (time_unit, [738.0, 30.25, 0.001, 0.0, None], "µs", ["738.0", "30.2", "<0.1", "0.0", "-"]),
    (time_unit, [12_345.0, 61.0], "ms", ["12.35", "0.06"]),
    (time_unit, [4_452_120.0], "ms", ["4452"]),
    (bytes_unit, [1_977_885_696, 5_000_000, 2], "GB", ["1.978", "0.005", "<0.001"]),
    (bytes_unit, [300, 2], "B", ["300", "2"]),
    (flops_unit, [4.02e8, 6e5], "Mflop", ["402.0", "0.6"]),
    (time_unit, [], "µs", []),
])  # fmt: skip
def test_a_column_has_one_unit(unit, values, name, said):
    found = unit(values)
    assert (found.name, [found.text(v) for v in values]) == (name, said)


def test_limits_that_were_measured_on_a_busy_machine_are_told():
    report = example()
    profile = report.profiles[0]
    line = replace(profile.roofline, processor_share=0.5)
    text = Page(report_page(replace(report, profiles=[replace(profile, roofline=line)]))).text
    assert "had 50 % of the processor time" in text and "had 50 %" not in Page(
        report_page(report)).text
