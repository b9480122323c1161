"""Standard logging: what TORCHWELD_LOG means, and that what goes wrong is logged."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from unittest import TestCase

import pytest
import torch

import torchweld
from torchweld.capture.aot import compile_or_run_eagerly
from torchweld.capture.captured import Captured
from torchweld.core import events, logs
from torchweld.core.errors import UsageError
from torchweld.core.events import TorchweldWarning
from torchweld.core.logs import levels_of
from torchweld.core.options import Options
from torchweld.runtime.record import note


@pytest.mark.parametrize(("text", "levels"), [
    ("", {}),
    ("info", {"torchweld": logging.INFO}),
    ("DEBUG", {"torchweld": logging.DEBUG}),
    ("warning, pipeline=debug", {"torchweld": logging.WARNING,
                                 "torchweld.pipeline": logging.DEBUG}),
])
def test_levels(text, levels):
    assert levels_of(text) == levels


@pytest.mark.parametrize("text", ["loud", "pipeline=", "pipeline=loud"])
def test_what_means_nothing_is_refused(text):
    with pytest.raises(UsageError, match="TORCHWELD_LOG"):
        levels_of(text)


def test_events_and_notes_are_logged():
    class Record:
        events: list = []  # noqa: RUF012

    with TestCase().assertLogs("torchweld", logging.DEBUG) as logged:
        events.record("test_logs", "it went otherwise")
        note(Record(), "fallback", "k7", "g++ failed")
    assert [(r.name, r.levelname, r.getMessage()) for r in logged.records] == [
        ("torchweld.events", "INFO", "it went otherwise"),
        ("torchweld.runtime", "DEBUG", "fallback: k7: g++ failed")]


def test_why_a_graph_runs_unfused_is_logged_with_its_traceback():
    def fails(captured, options):
        raise ValueError("a pass went wrong")

    module = torch.fx.symbolic_trace(torch.nn.ReLU())
    captured = Captured(module, "graph0", "inference")
    with TestCase().assertLogs("torchweld.capture", logging.DEBUG) as logged, \
            pytest.warns(TorchweldWarning, match="a pass went wrong"):
        compile_or_run_eagerly(fails, captured, Options())
    assert "in fails" in logged.output[0] and "graph0" in logged.output[0]


@pytest.mark.parametrize(("level", "said"), [("info", True), ("error", False)])
def test_the_environment_sets_it_up(level, said):
    program = "from torchweld.core import events; events.record('key', 'a message')"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True,
                          env={**os.environ, "TORCHWELD_LOG": level}, check=True)
    assert ("torchweld.events: a message" in done.stderr) == said


@pytest.mark.parametrize("name", ["TORCHWELD_LOG", "TORCHWELD_DEBUG"])
def test_what_the_environment_says_wrongly_is_told_where_a_model_is_fused(monkeypatch, name):
    monkeypatch.setenv(name, "loud")
    logs._set_up.cache_clear()
    with pytest.raises(UsageError, match=f"{name}=loud is not valid"):
        torchweld.fuse(torch.nn.ReLU())
