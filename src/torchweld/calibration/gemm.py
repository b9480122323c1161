"""How fast this machine makes float32 products, in each way (targets/rates.py).

Measured at the first compilation that has a product, in at most three seconds; kept with the
processor, the number of threads, and the versions of torch and of this package. While other work
takes the processor's time nothing is kept: priors serve, and a later compilation measures again.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import cycle

import torch
import torch.nn.functional as F

from torchweld.calibration.waiting import Moment, waiting_share
from torchweld.core import dtypes
from torchweld.core.errors import TorchweldError
from torchweld.core.logs import logger
from torchweld.core.options import Options
from torchweld.core.torch_private import without_modes
from torchweld.ir.nodes import Buffer, Extern, Graph, Symbol, View
from torchweld.ir.size import Size, symbol
from torchweld.plan.cpu_products import choose_products
from torchweld.plan.decisions import Plan
from torchweld.runtime.build import cpu_identity
from torchweld.runtime.cache import digest, open_cache
from torchweld.runtime.load import load
from torchweld.runtime.plan_cache import code_identity
from torchweld.runtime.torch_private import onednn_linear
from torchweld.targets.rates import ROWS, Rates, favouring
from torchweld.targets.target import Target
from torchweld.templates.generate import generate_all, kernels_of

COLUMNS, DEPTH = 3072, 768  # of the weight: 9 MB, which a core's own cache does not hold
_MOST_WEIGHTS = 8  # 75 MB
_FEW = 4  # rows for which there is a kernel of its own
_SECONDS = 3.0
_ROUNDS = 7
_MOST_SPREAD = 1.25  # of what is kept of the longest calls: beyond, something disturbed them
_MOST_WAITING = 0.05  # of that time, for a processor: beyond, others had the processors
_AGAIN_S = 60.0  # after a rejection

Call = Callable[[torch.Tensor], object]
_rejected_at: dict[str, float] = {}


def measured_rates(target: Target, options: Options, renew: bool = False) -> Rates | None:
    """Multiply-adds a second by way, at each of ROWS; None while the machine is busy, or where no
    kernel can be compiled."""
    return measured_once("gemm rates", lambda: _measured(target, options), options, renew)


def measured_once(
    what: str, measure: Callable[[], Rates | None], options: Options, renew: bool = False
) -> Rates | None:
    """What `measure` gives, kept under the name `what`; None if it is None."""
    key = _key(what)
    kept = None if renew else kept_rates(options, what)
    if kept is not None:
        return kept
    if not renew and time.monotonic() < _rejected_at.get(key, -_AGAIN_S) + _AGAIN_S:
        return None
    try:
        with without_modes(), torch.no_grad():
            found = measure()
    except TorchweldError as error:
        logger("calibration").info("not measured: %s", error)
        found = None
    if found is None:
        _rejected_at[key] = time.monotonic()
    else:
        open_cache(options).put(key, ".json", json.dumps(found).encode())
    return found


def kept_rates(options: Options, what: str = "gemm rates") -> Rates | None:
    """What was measured before, if anything was."""
    content = open_cache(options).get(_key(what), ".json")
    try:
        return content and {way: tuple(rates) for way, rates in json.loads(content).items()}
    except (ValueError, AttributeError, TypeError):
        return None


def _key(what: str) -> str:
    """Of what rates depend on."""
    threads = str(torch.get_num_threads())
    return digest(what, *cpu_identity(), threads, *code_identity())


def _measured(target: Target, options: Options) -> Rates | None:
    ways = _calls(target, options)
    start = time.perf_counter()
    rates: dict[str, list[float]] = {way: [] for way in ways}
    for rows in reversed(ROWS):
        before, x = Moment.now(), drawn(rows, DEPTH)
        times = timed(ways, x)
        why = disturbance(times, waiting_share(before)) if rows == ROWS[-1] else None
        if time.perf_counter() - start > _SECONDS:
            why = f"more than {_SECONDS:g} s"
        if why:
            logger("calibration").info("busy: %s", why)
            return None
        for way, seconds in taken_s(times).items():
            rates[way].insert(0, rows * COLUMNS * DEPTH / seconds)
    logger("calibration").info("%.2f s: %s", time.perf_counter() - start, rates)
    return {f"float32 {way}": tuple(found) for way, found in rates.items()}


def disturbance(times: Mapping[str, list[float]], waiting: float) -> str | None:
    """What shows that the longest calls had not all processors to themselves. Where there are
    several ways, what slowed all of them is no matter (`taken_s`)."""
    if waiting > _MOST_WAITING:
        return f"a thread waited {waiting:.0%} of the time for a processor"
    first, *others = times
    if not others:
        best, median = min(times[first]), statistics.median(times[first])
        return f"{best:.4f} to {median:.4f} s" if median > _MOST_SPREAD * best else None
    for way in others:
        low, _, high = statistics.quantiles(_ratios(times, way), n=4, method="inclusive")
        if high > _MOST_SPREAD * low:
            return f"{way} takes {low:.2f} to {high:.2f} times as long as {first}"
    return None


def taken_s(times: Mapping[str, list[float]]) -> dict[str, float]:
    """Seconds of each way: of the first its shortest call, of the others that times the median over
    the rounds of how many times as long they took. What slows the machine for a while slows the
    ways of a round alike: the ratio of shortest calls varied by 28 % there, this by 10."""
    best = min(next(iter(times.values())))
    return {way: best * statistics.median(_ratios(times, way)) for way in times}


def _ratios(times: Mapping[str, list[float]], way: str) -> list[float]:
    """How many times as long as the first way it took, in each round."""
    return [s / f for s, f in zip(times[way], next(iter(times.values())))]


def drawn(*sizes: int) -> torch.Tensor:
    """Random numbers that are not taken from the user's."""
    return torch.randn(sizes, generator=torch.Generator().manual_seed(0))


def _calls(target: Target, options: Options) -> dict[str, Call]:
    """Each way to make x @ weight.T + bias. Each call takes another weight, which the last-level
    cache has not, as in a model: oneDNN, which lays it out again, loses most by that."""
    apart = min(_MOST_WEIGHTS, 2 + target.llc_bytes // (4 * COLUMNS * DEPTH))
    weight, bias = drawn(COLUMNS, DEPTH), drawn(COLUMNS)
    weights = cycle([weight.clone() for _ in range(apart)])
    few, many = (_own(rows, target, options) for rows in (_FEW, symbol("s0")))

    def own(x: torch.Tensor) -> object:
        return (few if x.shape[0] == _FEW else many)([x, next(weights), bias])

    ways: dict[str, Call] = {"aten": lambda x: F.linear(x, next(weights), bias)}
    if torch.backends.mkldnn.is_available():
        ways["onednn"] = lambda x: onednn_linear(x, next(weights), bias, "none", None)
    return {**ways, "own": own}


def _own(rows: Size, target: Target, options: Options):
    """A program of one kernel of our own."""
    graph = _layer(rows)
    forced = replace(target, rates=favouring("own"))
    made = choose_products(Plan(graph, ()), forced, options, "inference").graph
    return load(made, generate_all(kernels_of(made, target)), {}, options)


def _layer(rows: Size) -> Graph:
    shapes = {"x": (rows, DEPTH), "w": (COLUMNS, DEPTH), "b": (COLUMNS,), "y": (rows, COLUMNS)}
    strides = {name: (shape[-1], 1)[-len(shape):] for name, shape in shapes.items()}
    buffers = {n: Buffer(n, s, dtypes.f32, strides[n]) for n, s in shapes.items()}
    weight = View("w", (DEPTH, COLUMNS), (1, DEPTH))
    call = Extern("linear", "aten.addmm.default", (buffers["b"].view, buffers["x"].view, weight),
                  (), ("y",))  # fmt: skip
    symbols = () if isinstance(rows, int) else (Symbol("s0", ("size", 0, 0), 256),)
    return Graph("calibration", symbols, buffers, (call,), ("x", "w", "b"), (buffers["y"].view,))


def timed(
    ways: Mapping[str, Call], x: torch.Tensor, rounds: int = _ROUNDS
) -> dict[str, list[float]]:
    """Seconds of each way, in turn: what disturbs the machine for a while disturbs them alike."""
    times: dict[str, list[float]] = {way: [] for way in ways}
    for turn in range(rounds + 1):
        for way, call in ways.items():
            start = time.perf_counter()
            call(x)
            if turn:  # the first is warm-up
                times[way].append(time.perf_counter() - start)
    return times
