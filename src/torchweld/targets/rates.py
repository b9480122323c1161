"""How fast a CPU makes products of matrices and convolutions, in each way that there is.

    aten      the call that eager makes (MKL, OpenBLAS; oneDNN for 16-bit types)
    onednn    oneDNN on the weight as it lies, with an activation behind it
    own       the template gemm/cpu, with what follows it

Rates are multiply-adds a second of all threads, at products of so many rows (the shorter side of
the result) with a weight of 3072 x 768; between them they are interpolated. Those of a machine are
measured once (calibration/gemm.py); the ones here are priors of one thread, by vendor.

Of 16-bit types, only the library's is known, at one size ("bfloat16 aten", calibration/halves.py).
Its prior is twice that of our own products of float32, where there are instructions for it (on a
Zen 4 98 and 50 G multiply-adds a second); elsewhere there is none.

Of convolutions of float32 images there are two ways, the library's ("aten") and the template conv
("own"). Their rates are those of windows of so many points (POINTS), of images of many channels, of
few (colours), and of windows that move in long steps (calibration/convolutions.py). The library's
leaves out what it takes to lay out images and weights.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from torchweld.core import dtypes
from torchweld.core.dtypes import DType

ROWS = (1, 4, 16, 64, 256, 1024)
WAYS = ("aten", "onednn", "own")
CONVOLUTION_WAYS = ("aten", "own")
POINTS = {"channels": (9, 49), "colours": (49, 121), "steps": (16, 121)}  # of windows
Rates = Mapping[str, tuple[float, ...]]  # "float32 own" -> a rate for each of ROWS

_G = 1e9
# Intel Xeon (AVX-512 with two FMA units): MKL near the peak. AMD Zen 5: MKL takes a slower path.
_INTEL: Rates = {
    "float32 aten": (3 * _G, 6 * _G, 18 * _G, 32 * _G, 38 * _G, 40 * _G),
    "float32 onednn": (3 * _G, 6 * _G, 18 * _G, 30 * _G, 35 * _G, 36 * _G),
    "float32 own": (3 * _G, 7 * _G, 18 * _G, 28 * _G, 33 * _G, 34 * _G),
}
_AMD: Rates = {
    "float32 aten": (3 * _G, 5 * _G, 20 * _G, 45 * _G, 52 * _G, 52 * _G),
    "float32 onednn": (3 * _G, 6 * _G, 26 * _G, 70 * _G, 95 * _G, 100 * _G),
    "float32 own": (3 * _G, 9 * _G, 45 * _G, 100 * _G, 122 * _G, 125 * _G),
}
# One of two threads of a Zen 3 that others share, 2026-11-28.
_AMD_AVX2: Rates = {
    "float32 aten": (3 * _G, 5 * _G, 14 * _G, 24 * _G, 35 * _G, 41 * _G),
    "float32 onednn": (3 * _G, 6.5 * _G, 17 * _G, 31 * _G, 38 * _G, 38 * _G),
    "float32 own": (2.3 * _G, 12 * _G, 25 * _G, 38 * _G, 40 * _G, 43 * _G),
}
_OTHER: Rates = {
    "float32 aten": (3 * _G, 6 * _G, 18 * _G, 28 * _G, 30 * _G, 30 * _G),
    "float32 onednn": (3 * _G, 6 * _G, 18 * _G, 27 * _G, 29 * _G, 29 * _G),
    "float32 own": (3 * _G, 7 * _G, 18 * _G, 26 * _G, 28 * _G, 28 * _G),
}
# One thread of a Xeon with AMX, 2026-11-26; of Zen 5 what agrees with where the two were equal:
# windows of 16 points, 64 of colours; the library took 0.5 to 0.85 of the time for long steps.
_INTEL_CONVOLUTIONS: Rates = {
    "channels aten": (68 * _G, 66 * _G), "channels own": (68 * _G, 53 * _G),
    "colours aten": (63 * _G, 66 * _G), "colours own": (57 * _G, 50 * _G),
    "steps aten": (65 * _G, 66 * _G), "steps own": (55 * _G, 52 * _G),
}  # fmt: skip
_AMD_CONVOLUTIONS: Rates = {
    "channels aten": (95 * _G, 115 * _G), "channels own": (115 * _G, 80 * _G),
    "colours aten": (90 * _G, 105 * _G), "colours own": (100 * _G, 70 * _G),
    "steps aten": (100 * _G, 100 * _G), "steps own": (60 * _G, 60 * _G),
}  # fmt: skip
_AMD_AVX2_CONVOLUTIONS: Rates = {
    "channels aten": (32 * _G, 38 * _G), "channels own": (30 * _G, 28 * _G),
    "colours aten": (32 * _G, 13 * _G), "colours own": (20 * _G, 20 * _G),
    "steps aten": (21 * _G, 17 * _G), "steps own": (16 * _G, 19 * _G),
}  # fmt: skip
_BFLOAT16 = {"avx512_bf16", "amx_bf16"}  # as Linux names the instructions
_BY_PROCESSOR = {
    ("GenuineIntel", True): {**_INTEL, **_INTEL_CONVOLUTIONS},
    ("AuthenticAMD", True): {**_AMD, **_AMD_CONVOLUTIONS},
    ("AuthenticAMD", False): {**_AMD_AVX2, **_AMD_AVX2_CONVOLUTIONS},
}  # by vendor, and whether it has AVX-512


@cache
def prior_rates(threads: int) -> Rates:
    """What is assumed of this machine's processor until it is measured."""
    flags = set(_of_processor("flags").split())
    kind = _of_processor("vendor_id"), "avx512f" in flags
    known = dict(_BY_PROCESSOR.get(kind, {**_OTHER, **_AMD_AVX2_CONVOLUTIONS}))
    if _BFLOAT16 & flags:
        known["bfloat16 aten"] = tuple(2 * rate for rate in known["float32 own"])
    return {way: tuple(r * threads for r in rates) for way, rates in known.items()}


def favouring(way: str, dtype: str = "float32") -> Rates:
    """Rates by which every product of `dtype` is made in one way: for tests, and to time a way."""
    return {f"{dtype} {w}": ((100 if w == way else 1) * _G,) * len(ROWS) for w in WAYS}


def favouring_convolutions(way: str) -> Rates:
    """Rates by which every convolution that has two ways is made in one."""
    speeds = {w: (100 if w == way else 1) * _G for w in CONVOLUTION_WAYS}
    return {f"{kind} {w}": (s, s) for kind in POINTS for w, s in speeds.items()}


def convolution_rate(rates: Rates, kind: str, way: str, points: int) -> float:
    """Multiply-adds a second for windows of `points`, interpolated along their logarithm."""
    (few, many), (first, last) = POINTS[kind], rates[f"{kind} {way}"]
    share = math.log(max(few, min(points, many)) / few) / math.log(many / few)
    return first ** (1 - share) * last**share


def library_rate(rates: Rates, dtype: DType) -> float | None:
    """Multiply-adds a second of the library's products of many rows, if they are known."""
    known = rates.get(f"{dtypes.to_torch(dtype)} aten".removeprefix("torch."))
    return known and known[-1]


def rate_at(rates: Rates, way: str, rows: int) -> float:
    """Multiply-adds a second at `rows`, interpolated along the logarithm of the rows."""
    known = rates[way]
    place = math.log2(max(1, min(rows, ROWS[-1]))) / 2
    low = min(int(place), len(ROWS) - 2)
    share = place - low
    return known[low] ** (1 - share) * known[low + 1] ** share


def _of_processor(what: str) -> str:
    """A line of what Linux says of it; empty elsewhere."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    return next((n.partition(":")[2].strip() for n in lines if n.startswith(what)), "")
