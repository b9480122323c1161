"""What became of each seed: one line of JSON each, appended, so that a campaign can be stopped and
taken up again."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path

from torchweld.core.files import write_whole
from torchweld.exact.campaign.checks import Case, place_of
from torchweld.exact.campaign.surrounded import AFTER, BEFORE
from torchweld.exact.programs import Program
from torchweld.exact.shrink import reproducer

_FILE = """\
# {remarks}
import torch

import torchweld
from torchweld.exact.campaign.checks import CHECKS
from torchweld.exact.campaign.modules import ModuleSample
from torchweld.exact.campaign.operators import Sample

# before: {before}
# after: {after}
case = {case!r}
print(CHECKS[{check!r}](case, {device!r}))
"""


@dataclass(frozen=True, slots=True)
class Finished:
    """`kind`: "" where the seed is no program. `found`: what differs. `file`: the smallest program
    that shows it. `limits`: names in campaign/listed.py if all that differs is listed there."""

    seed: int
    kind: str
    found: tuple[str, ...] = ()
    file: str = ""
    seconds: float = 0.0
    limits: tuple[str, ...] = ()

    @property
    def wrong(self) -> bool:
        return bool(self.found) and not self.limits


class Log:
    """The file of finished seeds; a last line that was cut off is forgotten."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        whole = [line for line in lines if line.endswith("\n")]
        if len(whole) != len(lines):
            write_whole("".join(whole), path)
        self.finished = [_read(line) for line in whole]

    @property
    def seeds(self) -> frozenset[int]:
        return frozenset(f.seed for f in self.finished)

    def add(self, finished: Finished) -> None:
        self.finished.append(finished)
        with self._path.open("a") as file:
            file.write(json.dumps(asdict(finished)) + "\n")


def _read(line: str) -> Finished:
    fields = json.loads(line)
    lists = {name: tuple(fields.get(name, ())) for name in ("found", "limits")}
    return Finished(**{**fields, **lists})


def write_case(case: Case, found: list[str], folder: Path, check: str, device: str) -> Path:
    """A file that shows what `check` found, under a name that follows from the case."""
    folder.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256(repr(case).encode()).hexdigest()[:10]
    path = folder / f"{'operator' if not isinstance(case, Program) else 'program'}_{digest}.py"
    write_whole(_text(case, found, check, device), path)
    return path


def _text(case: Case, found: list[str], check: str, device: str) -> str:
    if isinstance(case, Program):
        return reproducer(case, found, place_of(device))
    remarks = "\n# ".join(line for text in found for line in text.splitlines()[:20])
    return _FILE.format(
        remarks=remarks, case=case, before=BEFORE[case.before], after=AFTER[case.after],
        check=check, device=device,
    )  # fmt: skip
