"""Every option, typed, in one place. `cached` says whether the value is part of the key of cached
kernels and plans."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import MISSING, dataclass, field, fields, replace
from pathlib import Path
from typing import Literal

from torchweld.core.errors import UsageError


@dataclass(frozen=True, slots=True)
class _Kind:
    """What an option may be; `text` completes "give ..."."""

    text: str
    takes: Callable[[object], bool]


def _one_of(*values) -> _Kind:
    def takes(value) -> bool:
        return any(type(value) is type(one) and value == one for one in values)

    return _Kind(" or ".join(map(repr, values)), takes)


def _at_least(least: int, *types: type) -> _Kind:
    def takes(value) -> bool:
        return isinstance(value, types) and not isinstance(value, bool) and value >= least

    return _Kind(f"a number, {least} or more", takes)


_SWITCH = _one_of(True, False)
_FOLDER = _Kind("a path", lambda value: value is None or isinstance(value, (str, Path)))


def _option(default, doc: str, kind: _Kind, cached: bool = False):
    """`default`: a value, or a function that makes it for each Options."""
    metadata = {"doc": doc, "cached": cached, "kind": kind}
    if callable(default):
        return field(default_factory=default, metadata=metadata)
    return field(default=default, metadata=metadata)


def _default_cache() -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "torchweld"


def _debug_level() -> int:
    level = os.environ.get("TORCHWELD_DEBUG", "0")
    if not level.isdecimal():
        raise UsageError(f"TORCHWELD_DEBUG={level} is not valid", do="give a number, 0 to 3")
    return int(level)


def _calibration() -> str:
    asked = os.environ.get("TORCHWELD_CALIBRATE", "auto")
    if asked not in ("auto", "off"):
        raise UsageError(f"TORCHWELD_CALIBRATE={asked} is not valid", do="give auto or off")
    return asked


@dataclass(frozen=True, slots=True)
class Options:
    numerics: Literal["contract", "eager"] = _option(
        "contract",
        "contract: intermediates of a fused kernel stay in float32. eager: they are rounded "
        "wherever eager rounds",
        _one_of("contract", "eager"),
        cached=True,
    )
    dynamic: bool | None = _option(
        None,
        "True: sizes may vary between calls. False: each set of sizes is compiled for itself. "
        "None: as torch.compile decides",
        _one_of(None, True, False),
    )
    cuda_graphs: bool = _option(True, "replay programs as CUDA graphs where that pays", _SWITCH)
    pack_weights: bool = _option(
        False,
        "CPU inference with few rows: keep a second copy of weights in oneDNN's layout (1.4x as "
        "fast, for twice their memory)",
        _SWITCH,
        cached=True,
    )
    tune_seconds: float = _option(
        0.0,
        "on a GPU: time budget in seconds, for each new graph, to measure fused products and what "
        "they replace. 0: nothing is measured, and plans repeat exactly",
        _at_least(0, int, float),
        cached=True,
    )
    memory_budget: float = _option(
        1.0,
        "training: how much the forward may keep for the backward besides inputs and parameters; "
        "the rest is computed again. 0 to 1: a share of what it would keep; more: bytes",
        _at_least(0, int, float),
    )
    calibrate: Literal["auto", "off"] = _option(
        _calibration,
        "auto: measure once, in at most three seconds, how fast this CPU multiplies matrices with "
        "the library and with torchweld's kernels. off: use the shipped rates, so that plans "
        "repeat exactly. Default: $TORCHWELD_CALIBRATE, else auto",
        _one_of("auto", "off"),
    )
    fuse: bool = _option(
        True,
        "False: one kernel for each operation (a reference for tests)",
        _SWITCH,
        cached=True,
    )
    debug: int = _option(
        _debug_level,
        "1 prints each stage's name and seconds, 2 also its program, 3 also the sources. Default: "
        "$TORCHWELD_DEBUG, else 0",
        _at_least(0, int),
    )
    cache_dir: str | Path | None = _option(
        None,
        "folder for kernels and plans. None: $TORCHWELD_CACHE_DIR, else "
        "$XDG_CACHE_HOME/torchweld, else ~/.cache/torchweld",
        _FOLDER,
    )
    cache_gigabytes: float = _option(
        10.0,
        "size limit of that folder, in GB. When a process that has written there ends, it removes "
        "the files that were unused for longest. 0: no limit",
        _at_least(0, int, float),
    )
    compile_jobs: int = _option(
        os.cpu_count() or 1, "number of kernels compiled at a time", _at_least(1, int)
    )

    def __post_init__(self) -> None:
        for option in fields(self):
            value, kind = getattr(self, option.name), option.metadata["kind"]
            if not kind.takes(value):
                raise UsageError(
                    f"option {option.name}={value!r} is not valid", do=f"give {kind.text}"
                )

    def with_(self, **changes) -> Options:
        """A copy with these fields changed. Errors: UsageError for an unknown field, or a value
        that is not valid."""
        known = {f.name for f in fields(self)}
        unknown = sorted(set(changes) - known)
        if unknown:
            raise UsageError(
                f"unknown option {', '.join(unknown)}",
                do=f"choose from {', '.join(sorted(known))}",
            )
        return replace(self, **changes)

    def cache_root(self) -> Path:
        """The folder of kernels and plans: `cache_dir`, $TORCHWELD_CACHE_DIR, or the default."""
        named = self.cache_dir or os.environ.get("TORCHWELD_CACHE_DIR")
        return Path(named or _default_cache())

    def cache_key(self) -> tuple:
        """The values that change what is generated."""
        return tuple((f.name, getattr(self, f.name)) for f in fields(self) if f.metadata["cached"])


def _described() -> str:
    """For `help(torchweld.Options)`: each option with its default."""
    lines = ["What `fuse` takes by name: fuse(model, numerics=\"eager\").", ""]
    for option in fields(Options):
        default = "" if option.default is MISSING else f" = {option.default!r}"
        lines.append(f"{option.name}{default}\n    {option.metadata['doc']}")
    return "\n".join(lines)


Options.__doc__ = _described()
