"""How fast a CPU makes products of matrices, in each way that there is.

    aten      the call that eager makes (MKL, OpenBLAS; oneDNN for 16-bit types)
    onednn    oneDNN on the weight as it lies, with an activation behind it
    own       the template gemm/cpu, with what follows it

Rates are multiply-adds a second of all threads, at products of so many rows (the shorter side of
the result) with a weight of 3072 x 768; between them they are interpolated. Those of a machine are
measured once (calibration/gemm.py); the ones here are priors of one thread, by vendor.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from pathlib import Path

ROWS = (1, 4, 16, 64, 256, 1024)
WAYS = ("aten", "onednn", "own")
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
_OTHER: Rates = {
    "float32 aten": (3 * _G, 6 * _G, 18 * _G, 28 * _G, 30 * _G, 30 * _G),
    "float32 onednn": (3 * _G, 6 * _G, 18 * _G, 27 * _G, 29 * _G, 29 * _G),
    "float32 own": (3 * _G, 7 * _G, 18 * _G, 26 * _G, 28 * _G, 28 * _G),
}
_BY_VENDOR = {"GenuineIntel": _INTEL, "AuthenticAMD": _AMD}


@cache
def prior_rates(threads: int) -> Rates:
    """What is assumed of this machine's processor until it is measured."""
    known = _BY_VENDOR.get(_vendor(), _OTHER)
    return {way: tuple(r * threads for r in rates) for way, rates in known.items()}


def favouring(way: str, dtype: str = "float32") -> Rates:
    """Rates by which every product of `dtype` is made in one way: for tests, and to time a way."""
    return {f"{dtype} {w}": ((100 if w == way else 1) * _G,) * len(ROWS) for w in WAYS}


def rate_at(rates: Rates, way: str, rows: int) -> float:
    """Multiply-adds a second at `rows`, interpolated along the logarithm of the rows."""
    known = rates[way]
    place = math.log2(max(1, min(rows, ROWS[-1]))) / 2
    low = min(int(place), len(ROWS) - 2)
    share = place - low
    return known[low] ** (1 - share) * known[low + 1] ** share


def _vendor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    return next((n.partition(":")[2].strip() for n in lines if n.startswith("vendor_id")), "")
