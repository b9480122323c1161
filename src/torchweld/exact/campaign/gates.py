"""Gates that say what is worth its time, opened: small programs go the ways of large ones too.
Constants folded in float64; sizes of tiles drawn, and what a device does in a second."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from random import Random
from types import ModuleType

import torch

from torchweld.capture import ahead
from torchweld.core.dtypes import to_torch
from torchweld.ir import row_price, simplify
from torchweld.ir.access import Accesses
from torchweld.runtime import placement, recording
from torchweld.targets import find
from torchweld.targets.products import ProductRates, Rate
from torchweld.targets.target import Target
from torchweld.templates.attention.cpu import schedule as attention
from torchweld.templates.pointwise_reduce import stretches
from torchweld.templates.pointwise_reduce.cpu import schedule as loops

# Chunks of rows: of logits of any size, two rows and more, whatever time they take.
_OPEN: dict[ModuleType, dict[str, object]] = {
    row_price: {"_SHARE": 0.0, "_LEAST_SAVED": 1, "_FEWEST_ROWS": 2, "_GRAIN": 1,
                "_MOST_EXTRA": 1e9},
    ahead: {"_LEAST_BYTES": 1},
}  # fmt: skip
# Results of a replayed program that are large: of most small programs some, of few all.
_REPLAYED: dict[ModuleType, dict[str, object]] = {
    m: {"LARGE_OUTPUT_BYTES": 100} for m in (placement, recording)
}
# Stretches of scans, which may be of few elements.
_SHORT: dict[str, object] = {"_LENGTHS": (2, 5, 16), "_FEWEST": 2}
# The types in which constants are folded: graphs are compared in float64.
_EXACT: dict[ModuleType, dict[str, object]] = {
    simplify: {"to_torch": lambda dtype: torch.float64 if dtype.is_float else to_torch(dtype)}
}


def _first_row(accesses: Accesses, *_) -> str | None:
    """The lane that is the outermost row axis, where rows may be abreast."""
    rows, columns = accesses.frame.rows, accesses.frame.column_reductions
    return rows[0] if rows and not columns else None


# Sizes of tiles and lanes of kernels on a CPU, any of which is right.
_TILES: dict[ModuleType, dict[str, tuple[object, ...]]] = {
    loops: {"FLAT_BLOCK": (32, 100, 2048), "SHORT_LANE": (1, 8),
            "cheapest_lane": (loops.cheapest_lane, lambda *_: None, _first_row),
            "ROW_BLOCKS": ((16,), (32, 16), (256, 128, 64, 32, 16))},
    attention: {"KEYS": (32, 64, 128), "_PART": (6, 12, 48), "_MOST_ROWS": (12, 48, 96)},
}  # fmt: skip


def opened() -> AbstractContextManager[None]:
    """While it lasts, small logits are made some rows at a time."""
    return _patched(_OPEN)


def few_bytes_are_large() -> AbstractContextManager[None]:
    """While it lasts, programs are replayed with small results beside large ones, which are made
    behind what is recorded."""
    return _patched(_REPLAYED)


def folded_exactly() -> AbstractContextManager[None]:
    """While it lasts, constants are folded in float64."""
    return _patched(_EXACT)


def drawn_tiles(rng: Random) -> AbstractContextManager[None]:
    """While it lasts, kernels for a CPU are made with other tiles than the best."""
    drawn = {m: {n: rng.choice(v) for n, v in values.items()} for m, values in _TILES.items()}
    return _patched(drawn)


def drawn_rates(rng: Random) -> AbstractContextManager[None]:
    """While it lasts, plans are made for a device of this kind that is fast and slow at other
    things: whichever way is the fastest there must be right here."""
    seed = rng.random()

    def drawn(made: Callable[[int], Target]) -> Callable[[int], Target]:
        return lambda which: _as_fast_as(made(which), Random(seed))

    here = {n: drawn(getattr(find, n)) for n in ("_cuda_target", "cpu_target")}
    named = tuple(_as_fast_as(target, Random(seed)) for target in find.KNOWN)
    return _patched({find: {**here, "KNOWN": named}, stretches: _SHORT})


def _as_fast_as(target: Target, rng: Random) -> Target:
    def times(least: float, most: float) -> float:
        return 10 ** rng.uniform(least, most)

    return replace(
        target,
        units=rng.choice((target.units, min(target.units, 16), min(target.units, 4))),
        launch_s=target.launch_s * times(-3, 2),
        dram_bytes_per_s=target.dram_bytes_per_s * times(-3, 0),
        llc_bytes_per_s=target.llc_bytes_per_s * times(-2, 0),
        fma_per_s=target.fma_per_s * times(-2, 2),
        rates={n: tuple(r * times(-2, 2) for r in rates) for n, rates in target.rates.items()},
        products=target.products and _products(target.products, rng),
    )


def _products(rates: ProductRates, rng: Random) -> ProductRates:
    """The library's are slow, more often than not: it has nothing that may be wrong."""
    library = rng.choice((1.0, 1e-2, 1e-4))

    def drawn(name: str, rate: Rate) -> Rate:
        share = library if name.startswith("library") else 10 ** rng.uniform(-1, 1)
        return replace(rate, tflops=rate.tflops * share, start_us=rate.start_us / share**0.5)

    forms, wide = (
        {n: drawn(n, r) for n, r in forms.items()} for forms in (rates.forms, rates.wide)
    )
    return replace(rates, forms=forms, wide=wide, sum_us=rng.choice((0.0, rates.sum_us)),
                   computed_fma=rng.choice((0.0, rates.computed_fma)))  # fmt: skip


@contextmanager
def _patched(wanted: dict[ModuleType, dict[str, object]]) -> Iterator[None]:
    before = {m: {n: getattr(m, n) for n in values} for m, values in wanted.items()}
    try:
        _set(wanted)
        yield
    finally:
        _set(before)


def _set(values: dict[ModuleType, dict[str, object]]) -> None:
    for module, named in values.items():
        for name, value in named.items():
            setattr(module, name, value)
