"""Predicted seconds of a float32 convolution on a CPU, as the library's call and as our kernel, by
rates that are measured on the machine (targets/rates.py).

    library   call + multiply-adds of whole vectors of channels / rate + laying out / cache's rate
    own       call + multiply-adds / rate; in long steps, with what loading pixel by pixel takes

oneDNN convolves images whose channels lie in vectors. It copies image, weight and result to that
layout and back in each call, and computes the channels that fill the last vector up.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from torchweld.ir.nodes import Buffer, Extern
from torchweld.ir.size import hint, product
from torchweld.targets.rates import convolution_rate
from torchweld.targets.target import Target
from torchweld.templates.conv.comp import Call

_CALL_S = {"aten": 15e-6, "own": 3e-6}
_VECTOR = 16  # channels
COLOURS = 8  # fewer channels the library reads as they lie
LONG_STEP = 3  # of a window: ours then loads pixel by pixel
# Vectors of results whose multiply-adds take as long as loading so, and the results that rates are
# measured for. 8 x 8 in steps of 4, 3 channels, on a Zen 3 with AVX2, G multiply-adds/s: to 24
# results 33, to 32 40, to 64 61.
_LOADED, MEASURED = 8, 64


@dataclass(frozen=True, slots=True)
class Work:
    """Of a convolution: its kind and window by which rates are known, `results` of each place,
    `multiply_adds`, those of the library, and the bytes that it lays out."""

    kind: str
    points: int
    results: int
    multiply_adds: int
    padded: int
    laid_out: int


def work_of(
    node: Extern, call: Call, buffers: Mapping[str, Buffer], hints: Mapping[str, int]
) -> Work:
    """Of a convolution that is not transposed."""
    result, points = buffers[node.outputs[0]], math.prod(call.window)
    colours = call.channels < COLOURS
    kind = "colours" if colours else "channels"
    kind = "steps" if max(call.stride) >= LONG_STEP else kind
    places = hint(product((result.shape[0], *result.shape[2:])), hints) * points * call.groups
    channels = call.channels if colours else _whole(call.channels)
    shapes = (call.weight.shape, result.shape, *([] if colours else [call.image.shape]))
    laid_out = 4 * sum(hint(product(s), hints) for s in shapes)
    padded = places * channels * _whole(call.results)
    own = places * call.channels * call.results
    return Work(kind, points, call.results, own, padded, laid_out)


def has_own_convolutions(target: Target) -> bool:
    """Whether it has the instructions that kernels of ours are fast with: masked loads, and
    multiply-adds of eight lanes."""
    return "avx2" in target.features


def knows_convolutions(target: Target) -> bool:
    """Whether its record has rates of them."""
    return "channels own" in target.rates


def convolution_s(way: str, work: Work, target: Target) -> float:
    """Seconds in one of rates.CONVOLUTION_WAYS."""
    rate = convolution_rate(target.rates, work.kind, way, work.points)
    if way == "own":
        return _CALL_S[way] + work.multiply_adds * _with_loads(work, target) / rate
    return work.padded / rate + around_s(work, target)


def _with_loads(work: Work, target: Target) -> float:
    """What a multiply-add takes in times of one where rates are measured."""
    if work.kind != "steps":
        return 1.0
    loaded = _LOADED * max(8, target.lanes)
    return (1 + loaded / work.results) / (1 + loaded / MEASURED)


def around_s(work: Work, target: Target) -> float:
    """What the library takes around its multiply-adds."""
    return _CALL_S["aten"] + 2 * work.laid_out / target.llc_bytes_per_s


def _whole(channels: int) -> int:
    return -(-channels // _VECTOR) * _VECTOR
