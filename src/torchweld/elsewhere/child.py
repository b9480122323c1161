"""The process that plans: reads what is asked from stdin (a JSON list), writes what was found to a
file. What the targets print goes to stderr. See process.py."""

from __future__ import annotations

import json
import sys
from contextlib import redirect_stdout
from pathlib import Path

from torchweld.core.errors import UsageError
from torchweld.elsewhere.data import as_json, asked_of
from torchweld.elsewhere.expected import expected
from torchweld.elsewhere.plan import planned
from torchweld.observe.record.profile import Roofline


def main(answer: str) -> None:
    asked = [asked_of(a) for a in json.load(sys.stdin)]
    with redirect_stdout(sys.stderr):
        try:
            found = {"plans": [as_json(planned(a)) for a in asked]}
        except UsageError as error:
            found = {"wrong": error.what, "do": error.do}
    Path(answer).write_text(json.dumps(found))


def guess(answer: str) -> None:
    """The same for one expected trace."""
    read = json.load(sys.stdin)
    line = Roofline(**read["line"]) if read["line"] else None
    with redirect_stdout(sys.stderr):
        try:
            found = {"guess": expected(asked_of(read["asked"]), read["way"], line).to_json()}
        except UsageError as error:
            found = {"wrong": error.what, "do": error.do}
    Path(answer).write_text(json.dumps(found))
