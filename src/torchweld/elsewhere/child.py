"""The process that plans: reads what is asked from stdin (a JSON list), writes what was found to a
file. What the targets print goes to stderr. See process.py."""

from __future__ import annotations

import json
import sys
from contextlib import redirect_stdout
from pathlib import Path

from torchweld.core.errors import UsageError
from torchweld.elsewhere.data import as_json, asked_of
from torchweld.elsewhere.plan import planned


def main(answer: str) -> None:
    asked = [asked_of(a) for a in json.load(sys.stdin)]
    with redirect_stdout(sys.stderr):
        try:
            found = {"plans": [as_json(planned(a)) for a in asked]}
        except UsageError as error:
            found = {"wrong": error.what, "do": error.do}
    Path(answer).write_text(json.dumps(found))
