"""The page in headless Chromium: it loads, sorts, filters, opens, changes its colours, prints."""

from __future__ import annotations

import re
import zlib

import pytest

from browser import browser, missing
from report_example import LAYERS, example
from torchweld.observe.views.page.render import explanation_page, report_page

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing() or "there is a browser")

ENTER, TAB = "\ue007", "\ue004"
COLUMN = """
return Array.from(document.querySelectorAll(`#${arguments[0]} tbody tr`))
  .filter(row => !row.hidden).map(row => row.cells[arguments[1]].textContent.trim())
"""
SORT = "document.querySelectorAll(`#table-kernels th button`)[arguments[0]].click()"
ARIA = "return document.querySelectorAll('#table-kernels th')[arguments[0]].ariaSort"
GROUND = "return getComputedStyle(document.body).backgroundColor"
INK = "return getComputedStyle(document.querySelector('h1, h2')).color"
SIZE = (1280, 900)
CALLS, MEASURED = 3, 4  # columns of the table of kernels


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """The example, open in a browser that all tests here share; each loads it anew."""
    path = tmp_path_factory.mktemp("page") / "page.html"
    path.write_text(report_page(example()))
    with browser() as found:
        found.path = path
        yield found


@pytest.fixture(autouse=True)
def loaded(page):
    """Whatever a test does, the console hears no complaint."""
    page.open(page.path)
    yield
    assert page.errors() == []


def count(page, selector: str) -> int:
    return page.run("return document.querySelectorAll(arguments[0]).length", selector)


def test_every_plot_is_drawn(page):
    assert count(page, "#strip .block") == 4 + 2  # kernels of layers alike are one block
    launches = "return Array.from(document.querySelectorAll('.timeline'), p => " \
        "p.querySelectorAll('[aria-label=rect] rect').length)"
    assert page.run(launches) == [4 * LAYERS, 2 * LAYERS]
    assert count(page, "#plot-roofline [aria-label=dot] path") == 4 + 2
    assert count(page, "#plot-memory [aria-label=line] path") == 2
    assert page.run("return document.documentElement.scrollWidth <= innerWidth")


def test_the_result_and_the_strips_are_above_the_fold(page):
    """At 1440 by 900: what is read without scrolling."""
    page.size(1440, 900)
    page.open(page.path)
    bottom = "return document.querySelector('#strip .fusions').getBoundingClientRect().bottom"
    assert page.run(bottom) < 900
    page.size(*SIZE)


@pytest.mark.parametrize("width", [390, 1440])
def test_text_is_never_scaled_nor_cut(page, width):
    """Plots are drawn for the width that there is; a row of a table becomes a list."""
    page.size(width, 900)
    page.open(page.path)
    assert page.run("return document.documentElement.scrollWidth <= innerWidth")
    least = "return Math.min(...Array.from(document.querySelectorAll('figure svg'), s => " \
        "s.getBoundingClientRect().width / (s.viewBox.baseVal.width || 1)))"
    assert page.run(least) > 0.95
    outside = "return Array.from(document.querySelectorAll('table.stack td'), c => " \
        "c.getBoundingClientRect()).filter(r => r.width && r.right > innerWidth + 1).length"
    assert page.run(outside) == 0 or width > 390
    page.size(*SIZE)


def test_labels_of_a_plot_do_not_overprint(page):
    """Those of points, of lines and of peaks: no two boxes share more than a sliver."""
    boxes = "return Array.from(document.querySelectorAll(arguments[0]), t => { " \
        "const r = t.getBoundingClientRect(); return [r.left, r.top, r.right, r.bottom]; })"
    for plot in ("#plot-roofline", "#plot-memory"):
        found = page.run(boxes, f"{plot} [aria-label=text] text")
        assert len(found) >= 2
        for k, one in enumerate(found):
            for other in found[k + 1:]:
                wide = min(one[2], other[2]) - max(one[0], other[0])
                high = min(one[3], other[3]) - max(one[1], other[1])
                assert wide < 2 or high < 4, (plot, one, other)


def test_a_heading_sorts_both_ways(page):
    page.run(SORT, MEASURED)
    assert page.run(ARIA, MEASURED) == "descending"
    most = page.run(COLUMN, "table-kernels", MEASURED)
    assert most[:2] == ["738.0", "725.7"]
    page.run(SORT, MEASURED)
    assert page.run(ARIA, MEASURED) == "ascending"
    assert page.run(COLUMN, "table-kernels", MEASURED) == most[::-1]
    page.run(SORT, 1)
    names = page.run(COLUMN, "table-kernels", 1)
    assert names == sorted(names) and page.run(ARIA, MEASURED) == "none"


def test_a_keyboard_sorts_too(page):
    page.run("document.querySelectorAll(`#table-kernels th button`)[arguments[0]].focus()", CALLS)
    page.keys(ENTER)
    assert page.run(ARIA, CALLS) == "descending"
    page.keys(TAB)
    assert page.run("return document.activeElement.textContent") == "measured, µs"


def test_searching_and_choosing_leave_what_fits(page):
    page.run("""const box = document.querySelector('[data-for=table-kernels][type=search]');
    box.focus()""")
    page.keys(*"GELU model.py:12")
    assert page.run(COLUMN, "table-kernels", 0) == ["eager", "torchweld"]
    assert page.run("return document.querySelector('[data-count=table-kernels]').textContent") == (
        "2 of 6 rows")
    page.run("""const choice = document.querySelector('select[data-for=table-kernels]');
    choice.value = 'torchweld'; choice.dispatchEvent(new Event('input'))""")
    assert page.run(COLUMN, "table-kernels", 0) == ["torchweld"]


def test_a_group_opens_to_its_source(page):
    assert not page.run("return document.querySelector('#groups details').open")
    page.run("document.querySelector('#groups summary').focus()")
    page.keys(ENTER)
    assert page.run("return document.querySelector('#groups details').open")
    page.run("document.querySelector('#groups .source summary').click()")
    shown = "const code = document.querySelector('#groups pre'); " \
        "return [code.checkVisibility(), code.textContent]"
    visible, text = page.run(shown)
    assert visible and "tw_1" in text and "</script><script>alert(1)" in text


def test_a_timeline_zooms(page):
    told = "return document.getElementById('window').textContent"
    whole = page.run(told)
    page.run("document.querySelector('[data-zoom=in]').click()")
    closer = page.run(told)
    page.run("document.querySelector('.timeline').focus()")
    page.keys("+")
    assert len({whole, closer, page.run(told)}) == 3
    page.keys("0")
    assert page.run(told) == whole


def luminance(colour: str) -> float:
    red, green, blue = map(float, re.findall(r"[\d.]+", colour)[:3])
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("system", ["light", "dark"])
def test_both_themes(page, system):
    page.scheme(system)

    def is_dark() -> bool:
        ground, ink = luminance(page.run(GROUND)), luminance(page.run(INK))
        assert abs(ground - ink) > 150
        return ground < ink

    assert is_dark() == (system == "dark")
    page.run("document.getElementById('theme').click()")
    assert is_dark() != (system == "dark")
    assert page.run("return document.getElementById('theme').ariaPressed") == (
        "false" if system == "dark" else "true")
    page.scheme("light")


def test_it_prints_light_and_open(page):
    page.scheme("dark")
    page.run("""window.opened = null; addEventListener('beforeprint', () => {
      window.opened = document.querySelectorAll('details.group[open]').length; });""")
    document = page.pdf()
    assert document.startswith(b"%PDF") and len(page_streams(document)) >= 2
    assert page.run("return window.opened") == count(page, "details.group")
    assert count(page, "details.group[open]") == 0
    page.scheme("light")


def test_places_of_kernels_are_whole_on_paper(page):
    script = "return getComputedStyle(document.querySelector('.clip')).textOverflow + ' ' + "
    script += "getComputedStyle(document.querySelector('.clip')).overflow"
    assert page.run(script) == "ellipsis hidden"
    page.paper(True)
    assert page.run(script).endswith("visible")
    page.paper(False)


def page_streams(document: bytes) -> list[bytes]:
    """The content of each page that draws text."""
    found = []
    for stream in re.findall(rb"stream\r?\n(.*?)endstream", document, re.S):
        try:
            text = zlib.decompress(stream)
        except zlib.error:
            continue
        if (b"BT" in text and b"Tj" in text) or b"TJ" in text:
            found.append(text)
    return found


def test_an_explanation_alone_is_a_page(page, tmp_path):
    from torchweld.observe.views.explain import Explanation

    path = tmp_path / "explained.html"
    path.write_text(explanation_page(Explanation(tuple(example().graphs))))
    page.open(path)
    assert count(page, "#groups details.group") == 2
    page.run("document.getElementById('theme').click()")


