"""Calling many C++ kernels from Python at once: a small compiled walker over a table of calls.

A call in the table is a row of 64-bit integers:  function, number of pointers, number of sizes,
(base, byte offset) for each pointer, sizes. `bases` is the one thing that changes from call to
call: the address of each buffer that moves, of the arena and of the constants. So Python writes a
few integers, and a kernel costs some nanoseconds.
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from torchweld.runtime.build import compile_cpp, load_function
from torchweld.runtime.cache import Artifacts

MAX_POINTERS = 512

_SOURCE = r"""
#include <stdint.h>
#include <string.h>
#include <omp.h>
typedef void (*Kernel)(void* const*, const int64_t*);

extern "C" void torchweld_walk(const int64_t* call, int64_t count, const int64_t* bases) {
  void* pointers[MAX_POINTERS];
  for (; count > 0; --count) {
    const int64_t* slot = call + 3;
    for (int64_t i = 0; i < call[1]; ++i, slot += 2)
      pointers[i] = (char*)bases[slot[0]] + slot[1];
    ((Kernel)call[0])(pointers, slot);
    call = slot + call[2];
  }
}

// Above a megabyte all threads take a share.
template <class Share>
static void torchweld_shared(int64_t count, int64_t bytes, Share share) {
#pragma omp parallel if (count * bytes > (1 << 20))
  {
    int64_t parts = omp_get_num_threads(), part = omp_get_thread_num();
    share(count * part / parts, count * (part + 1) / parts);
  }
}

// pointers: target; sizes: bytes
extern "C" void torchweld_zero(void* const* pointers, const int64_t* sizes) {
  char* target = (char*)pointers[0];
  torchweld_shared(sizes[0], 1, [=](int64_t a, int64_t b) { memset(target + a, 0, b - a); });
}

// pointers: target, source; sizes: bytes
extern "C" void torchweld_copy(void* const* pointers, const int64_t* sizes) {
  char *target = (char*)pointers[0], *source = (char*)pointers[1];
  torchweld_shared(sizes[0], 1,
                   [=](int64_t a, int64_t b) { memcpy(target + a, source + a, b - a); });
}

template <class T>
static void torchweld_fill_as(void* at, int64_t count, int64_t bits) {
  T* target = (T*)at;
  torchweld_shared(count, sizeof(T), [=](int64_t a, int64_t b) {
    for (int64_t i = a; i < b; ++i) target[i] = (T)bits;
  });
}

// pointers: target; sizes: elements, bytes of one, its bits
extern "C" void torchweld_fill(void* const* pointers, const int64_t* sizes) {
  if (sizes[1] == 1) torchweld_fill_as<uint8_t>(pointers[0], sizes[0], sizes[2]);
  if (sizes[1] == 2) torchweld_fill_as<uint16_t>(pointers[0], sizes[0], sizes[2]);
  if (sizes[1] == 4) torchweld_fill_as<uint32_t>(pointers[0], sizes[0], sizes[2]);
  if (sizes[1] == 8) torchweld_fill_as<uint64_t>(pointers[0], sizes[0], sizes[2]);
}
""".replace("MAX_POINTERS", str(MAX_POINTERS))


@dataclass(frozen=True, slots=True)
class Pointer:
    """An address: that of slot `base`, plus bytes."""

    base: int
    offset: int = 0

    def after(self, count: int) -> Pointer:
        """`count` bytes on."""
        return Pointer(self.base, self.offset + count)


@dataclass(frozen=True, slots=True)
class NativeCall:
    function: int
    pointers: tuple[Pointer, ...]
    sizes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Helpers:
    """Addresses of the walker and of its own kernels, and the walker as a function: walk(table
    address, count, bases address)."""

    walker: int
    walk: Callable[[int, int, int], None]
    zero: int
    copy: int
    fill: int


def table(calls: Sequence[NativeCall]) -> array:
    """The calls as the walker reads them."""
    rows = array("q")
    for call in calls:
        if len(call.pointers) > MAX_POINTERS:
            raise ValueError(f"{len(call.pointers)} pointers in one kernel; at most {MAX_POINTERS}")
        rows.extend((call.function, len(call.pointers), len(call.sizes)))
        for pointer in call.pointers:
            rows.extend((pointer.base, pointer.offset))
        rows.extend(call.sizes)
    return rows


def library(artifacts: Artifacts) -> Path:
    """The file of the walker and its kernels, compiled if it is not there. Errors: as
    compile_cpp's."""
    path, _ = compile_cpp(_SOURCE, artifacts)
    return path


@cache
def helpers(artifacts: Artifacts) -> Helpers:
    return helpers_in(library(artifacts))


@cache
def helpers_in(path: Path) -> Helpers:
    """Those of a file that `library` made. Errors: BuildError where it does not load."""
    walk = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p)
    walker, *kernels = (
        load_function(path, f"torchweld_{n}") for n in ("walk", "zero", "copy", "fill")
    )
    return Helpers(walker, walk(walker), *kernels)
