"""How fast this machine convolves float32 images, in each way (targets/rates.py).

Measured at the first compilation that has a convolution, as products are (gemm.py): one image for
each rate, in some tens of milliseconds when the kernels have been compiled.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F

from torchweld.calibration.gemm import disturbance, drawn, measured_once, taken_s, timed
from torchweld.calibration.waiting import Moment, waiting_share
from torchweld.core import dtypes
from torchweld.core.logs import logger
from torchweld.core.options import Options
from torchweld.ir.nodes import Buffer, Comp, Extern, Graph
from torchweld.plan.convolutions import own_convolutions
from torchweld.plan.decisions import Plan
from torchweld.runtime.load import load
from torchweld.targets.rates import CONVOLUTION_WAYS, POINTS, Rates, favouring_convolutions
from torchweld.targets.target import Target
from torchweld.templates.conv.comp import call_of
from torchweld.templates.conv.price import MEASURED, around_s, work_of
from torchweld.templates.generate import generate_all, kernels_of

_SECONDS = 3.0
_ROUNDS = 11
_IMAGES = 4  # of one alone the library keeps its threads less busy than in a model
_NAME = "convolution rates"


@dataclass(frozen=True, slots=True)
class _Sample:
    """A square window of `points` that moves in steps of `stride` over a square image with
    `padding`."""

    points: int
    channels: int
    results: int
    side: int
    stride: int
    padding: int

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        window = math.isqrt(self.points)
        made = (self.side + 2 * self.padding - window) // self.stride + 1
        return {"x": (_IMAGES, self.channels, self.side, self.side),
                "w": (self.results, self.channels, window, window), "b": (self.results,),
                "y": (_IMAGES, self.results, made, made)}  # fmt: skip


_SAMPLES = {
    "channels": (_Sample(9, 64, 64, 28, 1, 1), _Sample(49, 32, 32, 28, 1, 3)),
    "colours": (_Sample(49, 3, 32, 112, 2, 3), _Sample(121, 3, 32, 64, 2, 5)),
    "steps": (_Sample(16, 16, MEASURED, 112, 4, 0), _Sample(121, 3, MEASURED, 112, 4, 2)),
}


def measured_convolutions(
    target: Target, options: Options, renew: bool = False
) -> Rates | None:
    """Multiply-adds a second by kind and way, at each of POINTS; None while the machine is busy, or
    where no kernel can be compiled."""
    return measured_once(_NAME, lambda: _measured(target, options), options, renew)


def _measured(target: Target, options: Options) -> Rates | None:
    samples = {kind: [_ways(s, target, options) for s in _SAMPLES[kind]] for kind in POINTS}
    rates: dict[str, list[float]] = {f"{k} {way}": [] for k in POINTS for way in CONVOLUTION_WAYS}
    start = time.perf_counter()
    for kind, of_kind in samples.items():
        for (graph, ways), sample in zip(of_kind, _SAMPLES[kind]):
            before, x = Moment.now(), drawn(*sample.shapes["x"])
            times = timed(ways, x, _ROUNDS)
            why = disturbance(times, waiting_share(before))
            if time.perf_counter() - start > _SECONDS:
                why = f"more than {_SECONDS:g} s"
            if why:
                logger("calibration").info("busy: %s", why)
                return None
            for way, seconds in taken_s(times).items():
                rates[f"{kind} {way}"].append(_rate(way, seconds, graph, target))
    logger("calibration").info("%.2f s: %s", time.perf_counter() - start, rates)
    return {way: tuple(found) for way, found in rates.items()}


def _rate(way: str, seconds: float, graph: Graph, target: Target) -> float:
    """Without what the library takes around it: at most half of its time."""
    (node,) = graph.nodes
    work = work_of(node, call_of(node), graph.buffers, graph.hints)
    if way == "own":
        return work.multiply_adds / seconds
    return work.padded / max(seconds - around_s(work, target), seconds / 2)


def _ways(
    sample: _Sample, target: Target, options: Options
) -> tuple[Graph, dict[str, Callable[[torch.Tensor], object]]]:
    """The library's call as a graph, and each way to make it."""
    graph = _call(sample)
    forced = replace(target, rates={**target.rates, **favouring_convolutions("own")})
    made = own_convolutions(Plan(graph, ()), forced, options).graph
    assert all(isinstance(node, Comp) for node in made.nodes)
    own = load(made, generate_all(kernels_of(made, target)), {}, options)
    weight, bias = (drawn(*sample.shapes[name]) for name in "wb")
    return graph, {
        "aten": lambda x: F.conv2d(x, weight, bias, sample.stride, sample.padding),
        "own": lambda x: own([x, weight, bias]),
    }


def _call(sample: _Sample) -> Graph:
    buffers = {
        n: Buffer(n, s, dtypes.f32, tuple(math.prod(s[k + 1 :]) for k in range(len(s))))
        for n, s in sample.shapes.items()
    }
    step, padding = (sample.stride,) * 2, (sample.padding,) * 2
    given = tuple(buffers[name].view for name in "xwb")
    call = Extern("convolution", "aten.convolution.default",
                  (*given, step, padding, (1, 1), False, (0, 0), 1), (), ("y",))  # fmt: skip
    return Graph("calibration", (), buffers, (call,), ("x", "w", "b"), (buffers["y"].view,))
