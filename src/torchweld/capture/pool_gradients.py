"""Gradients of pooling as operations that are lowered as gathers: of each position, the sum over
the windows that hold it (capture/lowering/pool_gradients.py), where these are few.

They read no image, so none is saved; of a maximum, the element's number in its window is, in one
byte. ATen's calls are the meaning of all.
"""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass

import torch

from torchweld.capture.lowering.pool_gradients import MOST_WINDOWS, holding
from torchweld.capture.lowering.windows import LARGEST_MAXIMUM

aten = torch.ops.aten
_library = torch.library.Library("torchweld", "FRAGMENT")
_library.define(
    "max_pool_taps(Tensor x, int[] kernel, int[] stride, int[] padding, int[] dilation, "
    "bool ceil_mode) -> (Tensor, Tensor)"
)
_library.define(
    "max_pool_gradient(Tensor gradient, Tensor taps, int[] size, int[] strides, int[] kernel, "
    "int[] stride, int[] padding, int[] dilation, bool ceil_mode) -> Tensor"
)
_library.define(
    "avg_pool_gradient(Tensor gradient, int[] size, int[] strides, int[] kernel, int[] stride, "
    "int[] padding, bool ceil_mode, bool count_include_pad, int? divisor_override) -> Tensor"
)
_ops = torch.ops.torchweld


@dataclass(frozen=True, slots=True)
class _Windows:
    """Sizes of a pooling, one number for each dimension of an image."""

    kernel: list[int]
    stride: list[int]
    padding: list[int]
    dilation: list[int]

    @staticmethod
    def of(rank: int, kernel, stride=(), padding=0, dilation=1) -> _Windows:
        kernel = _each(kernel, rank)
        stride = _each(stride, rank) if stride else kernel
        return _Windows(kernel, stride, _each(padding, rank), _each(dilation, rank))

    @property
    def holding(self) -> int:
        """How many windows hold a position, at most."""
        return math.prod(map(holding, self.kernel, self.stride, self.dilation))

    @property
    def is_regular(self) -> bool:
        """No window skips positions that others of its line hold."""
        return all(s == 1 or d == 1 for s, d in zip(self.stride, self.dilation))


def _each(value, rank: int) -> list[int]:
    values = [value] if isinstance(value, int) else list(value)
    return values * rank if len(values) == 1 else values


# By the dimensions of an image.
_MAXIMA = {2: aten.max_pool2d_with_indices, 3: aten.max_pool3d_with_indices}
_OF_MAXIMA = {2: aten.max_pool2d_with_indices_backward, 3: aten.max_pool3d_with_indices_backward}
_OF_AVERAGES = {2: aten.avg_pool2d_backward, 3: aten.avg_pool3d_backward}
_INTERLEAVED = (1, 2, 3, 4, 8)  # steps of windows along a row
_LONG = 16  # windows of a row, of which those at its ends are gathered one by one


def gather_gradients(joint: torch.fx.GraphModule) -> None:
    """Gradients of pooling as sums over the windows that hold a position."""
    for calls, gather in ((_OF_MAXIMA, _gather_maximum), (_OF_AVERAGES, _gather_average)):
        for rank, call in calls.items():
            for node in joint.graph.find_nodes(op="call_function", target=call.default):
                gather(node, rank)


def _gather_average(node: torch.fx.Node, rank: int) -> None:
    gradient, _, *how = _positional(node)
    kernel, stride, padding, ceil_mode, count_include_pad, divisor = how
    windows = _Windows.of(rank, kernel, stride, padding)
    if not _is_gathered(node, gradient, windows):
        return
    node.kwargs, node.target = {}, _ops.avg_pool_gradient.default
    sizes = (windows.kernel, windows.stride, windows.padding)
    node.args = (gradient, *_layout(node), *sizes, ceil_mode, count_include_pad, divisor)


def _gather_maximum(node: torch.fx.Node, rank: int) -> None:
    gradient, x, *how, ceil_mode, indices = _positional(node)
    windows = _Windows.of(rank, *how)
    pool = indices.args[0] if indices.target is operator.getitem else None
    if pool is None or pool.args[0] is not x or pool.target is not _MAXIMA[rank].default:
        return
    taps = math.prod(windows.kernel)
    alone = list(indices.users) == [node]
    fast = _is_chosen_fast(node.meta["val"], windows)
    is_gathered = fast and _is_gathered(node, gradient, windows)
    if not alone or not is_gathered or taps > LARGEST_MAXIMUM or not windows.is_regular:
        return
    sizes = (windows.kernel, windows.stride, windows.padding, windows.dilation, ceil_mode)
    pool.target, pool.args, pool.kwargs = _ops.max_pool_taps.default, (x, *sizes), {}
    values, old = pool.meta["val"]
    indices.meta["val"] = torch.empty_like(old, dtype=torch.int8)
    pool.meta["val"] = (values, indices.meta["val"])
    node.kwargs, node.target = {}, _ops.max_pool_gradient.default
    node.args = (gradient, indices, *_layout(node), *sizes)


def _positional(node: torch.fx.Node) -> list:
    """All arguments, in the order of the schema."""
    named = dict(zip((a.name for a in node.target._schema.arguments), node.args)) | node.kwargs
    return [named.get(a.name, a.default_value) for a in node.target._schema.arguments]


def _is_gathered(node: torch.fx.Node, gradient: torch.fx.Node, windows: _Windows) -> bool:
    made, given = node.meta["val"], gradient.meta["val"]
    known = all(isinstance(n, int) and n for n in (*made.shape, *made.stride(), *given.shape))
    return known and made.is_floating_point() and windows.holding <= MOST_WINDOWS


def _is_chosen_fast(images: torch.Tensor, windows: _Windows) -> bool:
    """Whether a gather that compares numbers is faster than ATen's call: on a CPU, where vectors
    lie along rows of some length, in steps that kernels interleave
    (templates/pointwise_reduce/cpu/phases.py), or along channels, and have as many elements as
    there are numbers in 32 bits."""
    if images.device.type != "cpu":
        return True
    if images.is_contiguous():
        stride, overlap = windows.stride[-1], windows.holding > 1
        return stride in _INTERLEAVED and images.shape[-1] >= stride * (_LONG if overlap else 1)
    if images.dim() != 4 or images.dtype != torch.float32:
        return False
    return images.is_contiguous(memory_format=torch.channels_last)


def _layout(node: torch.fx.Node) -> tuple[list[int], list[int]]:
    value = node.meta["val"]
    return list(value.shape), list(value.stride())


def _max_pool_taps(x, kernel, stride, padding, dilation, ceil_mode):
    """(maxima, of each its number in its window)."""
    values, indices = _MAXIMA[len(kernel)](x, kernel, stride, padding, dilation, ceil_mode)
    taps, below = torch.zeros_like(indices), indices
    count = 1
    for d in reversed(range(len(kernel))):
        side, size = d - len(kernel), x.shape[d - len(kernel)]
        below, at = below // size, below % size
        taps += (at - _first(indices, side, stride, padding)) // dilation[d] * count
        count *= kernel[d]
    return values, taps.to(torch.int8)


def _max_pool_gradient(
    gradient, taps, size, strides, kernel, stride, padding, dilation, ceil_mode
):
    rank = len(kernel)
    numbers, index, below = taps.long(), torch.zeros_like(taps, dtype=torch.int64), 1
    for d in reversed(range(rank)):
        at = numbers % kernel[d] * dilation[d] + _first(taps, d - rank, stride, padding)
        numbers = numbers // kernel[d]
        index += at * below
        below *= size[d - rank]
    made = gradient.new_empty_strided(size, strides)
    how = (kernel, stride, padding, dilation, ceil_mode)
    return made.copy_(_OF_MAXIMA[rank](gradient, made, *how, index))


def _first(like: torch.Tensor, d: int, stride, padding) -> torch.Tensor:
    """Where along dimension d of the image the windows of `like` begin."""
    first = torch.arange(like.shape[d], device=like.device) * stride[d] - padding[d]
    return first.view(-1, *(1,) * (-1 - d))


def _avg_pool_gradient(gradient, size, strides, *how):
    made = gradient.new_empty_strided(size, strides)
    return made.copy_(_OF_AVERAGES[len(how[0])](gradient, made, *how))


def _fake_taps(x, kernel, stride, padding, dilation, ceil_mode):
    values, indices = _MAXIMA[len(kernel)](x, kernel, stride, padding, dilation, ceil_mode)
    return values, torch.empty_like(indices, dtype=torch.int8)


for _name, _function, _fake in (
    ("max_pool_taps", _max_pool_taps, _fake_taps),
    ("max_pool_gradient", _max_pool_gradient,
     lambda gradient, taps, size, strides, *_: gradient.new_empty_strided(size, strides)),
    ("avg_pool_gradient", _avg_pool_gradient,
     lambda gradient, size, strides, *_: gradient.new_empty_strided(size, strides)),
):  # fmt: skip
    _library.impl(_name, _function, "CompositeExplicitAutograd")
    torch.library.register_fake(f"torchweld::{_name}", _fake, lib=_library)
