"""The plans of every model of the zoo as text, so that two commits can be compared with diff:

    python bench/plans.py before/            at one commit
    python bench/plans.py after/             at another
    diff -r before after

Planned on fake tensors, for devices that need not be here; nothing is compiled. Only what is
planned for `cpu` depends on this machine.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from torchweld.core.errors import UsageError
from torchweld.elsewhere.data import Asked, Plans
from torchweld.elsewhere.process import plans
from torchweld.elsewhere.text import as_text
from torchweld.zoo.models import TABLE

_DEVICES = ("h100", "a100", "cpu")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("models", nargs="*", default=[], help=f"of {', '.join(TABLE)}; all")
    parser.add_argument("--devices", nargs="+", default=list(_DEVICES))
    parser.add_argument("--schedules", action="store_true", help="with each kernel's schedule")
    parser.add_argument("--tiny", action="store_true", help="models cut small")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    for model in given.models or TABLE:
        for train in (False, True):
            asked = Asked(model, tuple(given.devices), train, None, given.tiny)
            _write(given.folder, asked, _plans(asked), given.schedules)


def _plans(asked: Asked) -> Plans:
    """None, and a note, of a model that looks at values (Whisper does in training)."""
    try:
        return plans([asked])[0]
    except UsageError as error:
        return Plans((), (str(error),))


def _write(folder: Path, asked: Asked, found: Plans, schedules: bool) -> None:
    """A file for each device."""
    step = "train" if asked.train else "infer"
    for device in asked.devices:
        graphs = [g for g in found.graphs if g.device == device]
        text = as_text(graphs, schedules) + "".join(f"note: {n}\n" for n in found.notes)
        Path(folder, f"{asked.target}-{step}-{device}.txt").write_text(text)


if __name__ == "__main__":
    main()
