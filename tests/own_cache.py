"""A cache of a test's own that has what every program needs: a second of g++ each time."""

from __future__ import annotations

import shutil
from pathlib import Path

from torchweld.core.options import Options
from torchweld.runtime import dispatch
from torchweld.runtime.cache import open_cache
from torchweld.runtime.native import native_library


def with_runtime(root: Path) -> Path:
    """`root`, made here, with the runtime's two libraries from the cache of all tests."""
    common = open_cache(Options())
    root.mkdir(mode=0o700)
    for library in (native_library(common), dispatch.library(common)):
        copy = root / library.relative_to(common.root)
        copy.parent.mkdir(exist_ok=True)
        shutil.copy2(library, copy)
    return root
