"""What a report says of its ratios: faster, slower, or inconclusive, with the reason."""

from __future__ import annotations

from dataclasses import replace

import pytest
from rich.console import Console
from tests.report_example import example

from torchweld.observe.record.report import Timing, Way
from torchweld.observe.views.report import show
from torchweld.observe.views.verdict import speed_text, verdict, verdicts


def said(median, ratio, low, high, share=None, ours=1.0):
    way = Way("eager", timing=Timing(9, median, 0.1, ratio, low, high, share))
    return str(verdict(way, Way("torchweld", timing=Timing(9, ours, 0.1, 1.0, 1.0, 1.0, share))))


@pytest.mark.parametrize("ratio, text", [
    (1.8, "1.80x faster"), (0.5, "2.00x slower"), (1.0, "as fast"), (0.998, "as fast"),
    (0.8333, "1.20x slower"),
])  # fmt: skip
def test_one_verb(ratio, text):
    assert speed_text(ratio) == text


def test_clear_cases():
    assert said(1.8, 1.8, 1.7, 1.9) == "torchweld is 1.80x faster than eager"
    assert said(0.5, 0.5, 0.49, 0.51) == "torchweld is 2.00x slower than eager"
    assert said(1.0, 1.001, 0.999, 1.003) == "torchweld is as fast as eager"


@pytest.mark.parametrize("figures, why", [
    ((1.1, 1.1, 0.9, 1.3), "half of the ratios lie between 0.90 and 1.30"),
    ((4816 / 3452, 1.0, 1.0, 1.0), "ratio of the medians is 1.40, but the median ratio is 1.00"),
    ((0.9, 1.26, 1.2, 1.3), "the ratio of the medians is 0.90, but the median ratio is 1.26"),
    ((1.26, 1.26, 1.2, 1.3, 0.62), "had 62 % of the processor time that it asked for"),
])  # fmt: skip
def test_inconclusive_says_why(figures, why):
    text = said(*figures)
    assert text.startswith("torchweld against eager: inconclusive, because") and why in text


def test_an_idle_machine_is_not_blamed():
    assert said(1.26, 1.26, 1.2, 1.3, 0.97) == "torchweld is 1.26x faster than eager"


def test_in_the_tables():
    report = example()
    assert [v.way for v in verdicts(report)] == ["eager", "inductor"]
    busy = [replace(w, timing=w.timing and replace(w.timing, processor_share=0.5))
            for w in report.ways]  # fmt: skip
    for shown, text in ((report, "torchweld is 1.52x faster than eager"),
                        (replace(report, ways=busy), "torchweld against eager: inconclusive")):
        console = Console(width=80, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
        show(shown, console)
        assert text in " ".join(console.export_text().split())
