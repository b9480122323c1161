"""Indices out of range on a GPU, told to the host without stopping a stream.

A kernel that meets such an index stores one byte into page-locked memory of the host, which a GPU
can write to as it does to its own. No kernel writes there as long as all indices are in range, and
nothing is copied: a check costs a comparison on the GPU, and the host a look at some bytes at each
call. A byte that is set stays set, through any number of calls, until the host has told the user:
at the next call of the same program, in `verify`, or, if neither comes, when the process ends.
"""

from __future__ import annotations

import atexit
import ctypes
from collections.abc import Mapping

import torch

from torchweld.capture.torch_private import without_modes
from torchweld.core.events import warn_once
from torchweld.ir.index_check import out_of_range, sticky_flags
from torchweld.ir.nodes import Extern, Graph

_APART = 64  # bytes between two flags: launchers take aligned addresses for granted
_EARLIER = " on the GPU, in an earlier call"


class IndexFlags:
    """The flags of one program; false if it has none. `tensors`: by buffer name, bool, in memory of
    the host."""

    def __init__(self, checks: Mapping[str, Extern], memory: torch.Tensor | None) -> None:
        """`memory`: zeros, 64 bytes for each check, page-locked."""
        self._checks = tuple(checks.values())
        places = enumerate(checks)
        self.tensors = {n: memory[k * _APART].view(torch.bool) for k, n in places}
        self._memory, count = memory, len(checks) * _APART
        self._seen = (ctypes.c_char * count).from_address(memory.data_ptr()) if checks else None
        self._clear = bytes(count)

    def __bool__(self) -> bool:
        return bool(self._checks)

    def raise_if_set(self) -> None:
        """Raises IndexOutOfRange for the first check that has failed since the last look, and
        clears all: what comes after is looked at anew. Waits for nothing."""
        if self._seen is not None and self._seen.raw != self._clear:
            raise self._error()

    def _error(self) -> Exception:
        failed = self._seen.raw[::_APART].index(1)
        ctypes.memset(self._seen, 0, len(self._clear))
        check = self._checks[failed]
        return out_of_range(check, *check.args[1:], when=_EARLIER)


_ALL: list[IndexFlags] = []  # kept: a kernel may still be under way when its program has gone


def flags_of(graph: Graph) -> IndexFlags:
    """New flags for a program of `graph`, all clear."""
    checks = sticky_flags(graph)
    if not checks:
        return IndexFlags({}, None)
    with without_modes(), torch.inference_mode(False):  # a graph is compiled amid fake tensors
        memory = _zeros(len(checks) * _APART)
        flags = IndexFlags(checks, memory)
    _ALL.append(flags)
    return flags


def _zeros(size: int) -> torch.Tensor:
    return torch.zeros(size, dtype=torch.uint8, pin_memory=torch.cuda.is_available())


def raise_if_any_set() -> None:
    """Waits for GPUs that are in use, then raises IndexOutOfRange for the first check of any
    program that has failed and has not been told."""
    if _ALL and torch.cuda.is_initialized():
        torch.cuda.synchronize()
    for flags in _ALL:
        flags.raise_if_set()


@atexit.register
def _tell_at_exit() -> None:
    try:
        raise_if_any_set()
    except (IndexError, RuntimeError) as error:  # the second: the GPU is not to be used any more
        warn_once(f"index {error}", f"{error}; results since then are wrong")
