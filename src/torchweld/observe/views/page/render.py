"""A report as one page that stands alone: templates filled, style, scripts and plots' library
inside."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import CppLexer, PythonLexer

from torchweld.core.units import bytes_text, counted, general, ms_text, number_text, seconds_text
from torchweld.observe.record.profile import Profile, short_name, short_source
from torchweld.observe.record.report import Made, Report, Source
from torchweld.observe.views.page.figures import MOST_LAUNCHES, figures_json, product_rates
from torchweld.observe.views.page.units import (
    bytes_unit,
    duration_text,
    flops_unit,
    joules_text,
    time_unit,
    us_text,
)
from torchweld.observe.views.rows import (
    group_times,
    kernel_rows,
    made_by_name,
    module_rows,
    operations_text,
)
from torchweld.observe.views.strip import strips
from torchweld.observe.views.verdict import verdict

HERE = Path(__file__).parent
LIBRARIES = ("d3.min.js", "plot.umd.min.js")
SCRIPTS = ("tables.js", "plots.js", "page.js")
_MOST_MARKED = 16_000  # characters
_LEXERS = {"cpp": CppLexer, "triton": PythonLexer, "gluon": PythonLexer}


def report_page(report: Report) -> str:
    """The HTML of a whole report."""
    before, after = _profile(report, "eager"), _profile(report, "torchweld")
    made = made_by_name(report.graphs)
    rows = [r for profile in (before, after) if profile for r in kernel_rows(profile, made=made)]
    beside = strips(before, after)
    return _environment().get_template("report.html.jinja").render(
        report=report, before=before, after=after, kernels=rows,
        modules=module_rows(before, after), strips=beside,
        figures=Markup(figures_json(report, beside)),
        libraries=[asset(name) for name in LIBRARIES], scripts=[asset(name) for name in SCRIPTS],
    )  # fmt: skip


def explanation_page(explanation) -> str:
    """The HTML of an `Explanation`, a whole page."""
    return _environment().get_template("explanation.html.jinja").render(
        graphs=explanation.graphs, before=None, after=None,
        scripts=[asset(name) for name in ("tables.js", "page.js")],
    )  # fmt: skip


def explanation_fragment(explanation) -> str:
    """The same for a cell of a notebook: no scripts, style that touches nothing else."""
    template = _environment().get_template("fragment.html.jinja")
    return template.render(graphs=explanation.graphs, before=None, after=None)


def asset(name: str) -> Markup:
    """A file of `assets/`, to stand inside a style or script element."""
    return Markup((HERE / "assets" / name).read_text(encoding="utf-8"))


def _profile(report: Report, way: str) -> Profile | None:
    return next((profile for profile in report.profiles if profile.way == way), None)


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(HERE / "templates"), autoescape=True, trim_blocks=True,
        lstrip_blocks=True, undefined=StrictUndefined,
    )  # fmt: skip
    environment.filters |= _FILTERS
    environment.globals |= {
        "asset": asset,
        "bytes_unit": bytes_unit,
        "flops_unit": flops_unit,
        "group_times": group_times,
        "most_launches": MOST_LAUNCHES,
        "product_rates": product_rates,
        "time_unit": time_unit,
    }
    return environment


def how_text(made: Made) -> str:
    """How a kernel is tiled, and why by no other template."""
    return "; ".join(part for part in (made.schedule, made.reason) if part)


def highlighted(source: Source) -> Markup:
    """Generated code with its tokens marked by short classes, unless it is long: marks make ten
    times as much of it; escaped."""
    if len(source.text) > _MOST_MARKED:
        return escape(source.text)
    formatter = HtmlFormatter(nowrap=True)
    return Markup(highlight(source.text, _LEXERS[source.language](), formatter))


_FILTERS: dict[str, Callable] = {
    "bytes": bytes_text,
    "number": lambda count: "-" if count is None else number_text(round(count)),
    "ms": ms_text,
    "us": us_text,
    "seconds": seconds_text,
    "percent": lambda share: "-" if share is None else f"{100 * share:.0f} %",
    "verdict": verdict,
    "ratio": lambda ratio: "-" if ratio is None else f"{ratio:.2f}",
    "counted": lambda places: counted([place.short_op for place in places]),
    "microseconds": lambda milliseconds: 1e3 * milliseconds,
    "small": lambda value: f"{value:.1e}",
    "joules": joules_text,
    "duration": duration_text,
    "operations": operations_text,
    "short": short_name,
    "line": short_source,
    "general": general,
    "highlighted": highlighted,
    "how": how_text,
}
