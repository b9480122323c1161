"""Runs archives where nothing can be compiled: python archive_run.py FOLDER, with an empty PATH.

FOLDER has NAME.tw and NAME.calls, a list of (args, kwargs, result). Prints the names whose results
are the same bit for bit."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

sys.modules["torch._dynamo"] = None  # importing it fails
sys.modules["triton"] = None

import torch  # noqa: E402

import torchweld  # noqa: E402
from torchweld.core.torch_private import pytree  # noqa: E402


def same(made, wanted) -> bool:
    (a, kind), (b, other) = pytree.tree_flatten(made), pytree.tree_flatten(wanted)
    return kind == other and all(map(_same, a, b))


def _same(a, b) -> bool:
    if not isinstance(a, torch.Tensor):
        return type(a) is type(b) and a == b
    told = [(t.dtype, t.shape, t.stride()) for t in (a, b)]
    return told[0] == told[1] and torch.equal(a.isnan(), b.isnan()) and torch.equal(
        a.nan_to_num(), b.nan_to_num())


def run(archive: Path) -> bool:
    model = torchweld.load(archive)
    fits = []
    for args, kwargs, wanted in torch.load(archive.with_suffix(".calls"), weights_only=False):
        torch.manual_seed(1)
        fits.append(same(model(*args, **kwargs), wanted))
    return bool(fits) and all(fits)


if __name__ == "__main__":
    assert shutil.which("g++") is None and shutil.which("gcc") is None
    for path in sorted(Path(sys.argv[1]).glob("*.tw")):
        print(path.stem, "same" if run(path) else "different", flush=True)
