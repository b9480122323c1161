"""The ways of running a model that a report compares: a table of names and how each is prepared."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from torchweld.api import fuse
from torchweld.core.errors import UsageError

# (model, (args, kwargs), train) -> what is called in the model's place
Prepare = Callable[[nn.Module, tuple, bool], Callable]


@dataclass(frozen=True)
class Recipe:
    """`replays`: through CUDA graphs whose outputs the next call overwrites."""

    prepare: Prepare
    replays: bool = False


def _compiled(mode: str) -> Prepare:
    return lambda model, inputs, train: torch.compile(model, mode=mode)


def _torchweld(model: nn.Module, inputs: tuple, train: bool) -> Callable:
    """Ahead of time for inference; training captures at the first call, forward and backward."""
    return fuse(model) if train else fuse(model, inputs)


WAYS: dict[str, Recipe] = {
    "eager": Recipe(lambda model, inputs, train: model),
    "inductor": Recipe(_compiled("default")),
    "inductor-reduce-overhead": Recipe(_compiled("reduce-overhead"), replays=True),
    "inductor-max-autotune": Recipe(_compiled("max-autotune"), replays=True),
    "torchweld": Recipe(_torchweld),
}
# In the wrapper that Inductor writes: a generated kernel, a library call, an ATen fallback.
_INDUCTOR_CALL = re.compile(
    r"^\s+(?:\w+ = )?(?:cpp_fused\w*\(|extern_kernels\.|torch\.ops\.)", re.M)
USUAL = {"cpu": ("eager", "inductor"), "cuda": ("eager", "inductor", "inductor-reduce-overhead")}


def chosen_ways(against: str | None, device: str) -> list[str]:
    """The baselines named in a comma-separated list (None: the usual ones), then torchweld. Errors:
    UsageError for a name that is not in the table."""
    names = USUAL[device] if against is None else [n.strip() for n in against.split(",") if n]
    unknown = [name for name in names if name not in WAYS]
    if unknown:
        raise UsageError(
            f"there is no baseline {unknown[0]!r}", do=f"choose from {', '.join(WAYS)}"
        )
    return [*dict.fromkeys(n for n in names if n != "torchweld"), "torchweld"]


@contextmanager
def fresh_inductor_cache() -> Iterator[Path]:
    """An empty Inductor (and Triton) cache folder, in force inside."""
    before = {
        name: os.environ.pop(name, None) for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
    }
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
        try:
            yield Path(folder)
        finally:
            for name, value in before.items():
                os.environ.pop(name, None)
                if value is not None:
                    os.environ[name] = value


def inductor_cpu_calls(cache: Path) -> int:
    """Kernels and library calls in the code that Inductor wrote for the CPU under `cache`; 0 if
    there is none that this can read."""
    texts = (path.read_text() for path in cache.rglob("*.py"))
    return sum(len(_INDUCTOR_CALL.findall(text)) for text in texts if "def call(" in text)
