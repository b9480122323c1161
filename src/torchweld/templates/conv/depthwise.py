"""Which convolutions of each channel alone, or of a few channels to a few, become pointwise work
(passes/depthwise.py).

On a GPU, a thread reads each element of its windows, and what it has read waits in registers. The
schedule therefore gives it fewer points the more it reads (pointwise_reduce/gpu/default.py): 4
where a window has up to 43 elements, 2 with 49. Compiled for sm_90, windows of 5 x 5 and of
3 x 3 x 3 take as many registers (56 to 255), and none spills. Those of 7 x 7 spilled when a thread
had more points; now each of its loads is of 4 bytes, and neighbours share none.

On a CPU, the lanes of pointwise work are the pixels of a row. Those of the kernels that convolve
(cpu/convolution.h, cpu/depthwise.h) are channels or results: few of them leave lanes idle, and the
image is turned there and back, for which no tap is too many.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from torchweld.core import dtypes
from torchweld.ir.nodes import Buffer, Extern
from torchweld.templates.conv.comp import Call, call_of, lies_by_pixel
from torchweld.templates.conv.gradient import WeightGradient, image_gradient

_MOST_TAPS = 27
_MOST_SUMS, _SHORT_WINDOW = 49, 9
_MOST_OF_SEVERAL = 49  # where a channel has several results, which libraries are slowest at
# Results of a convolution without groups, of so few channels that its windows are short: filters of
# images. There is nothing for tensor cores in it. Three of them on 24 grey images of 540 x 540, in
# bfloat16, are 5.8 ms of cuDNN's kernels and copies on an H200, whose memory takes 0.02 for them.
_FEW_RESULTS = 4
# On a CPU, in times of what a tap inside the image takes of pointwise work: taps by where the
# window leaves the image, in rows of at least 64, 14 and 1 pixels (half of those, where it moves in
# steps); and a result of our kernels, for each lane of its vectors, and for each result that shares
# what is read of a pixel. Of 186 shapes (one thread of a Xeon, AVX-512) 89 become pointwise work,
# which takes 0.14 to 1.0 of the time.
_WIDTHS = (64, 14, 1)
_TAP = {"nowhere": (1, 1, 2), "down": (1, 2, 4), "across": (2, 3, 10), "both": (3, 4, 10)}
_OWN, _OWN_READING, _OWN_TAP = 24.0, 75.0, 0.25


def is_depthwise(call: Call | None) -> bool:
    """Whether it convolves each channel alone, transposed or not."""
    return call is not None and call.groups > 1 and call.channels == 1


def is_filter(call: Call | None, buffers: Mapping[str, Buffer]) -> bool:
    """Whether it convolves all channels of an image, which are few, to a few others."""
    few = call is not None and call.groups == 1 and call.results <= _FEW_RESULTS
    return few and _is_short(call, _MOST_TAPS, buffers)


def is_pointwise(call: Call | None, buffers: Mapping[str, Buffer]) -> bool:
    """Whether it is one that is written out, tap by tap."""
    if is_filter(call, buffers):
        return True
    if not is_depthwise(call):
        return False
    several = call.results > 1 and not call.transposed
    return _is_short(call, _MOST_OF_SEVERAL if several else _MOST_TAPS, buffers)


def is_pointwise_on_cpu(call: Call | None, buffers: Mapping[str, Buffer], lanes: int) -> bool:
    """Whether it is one of float32, of an image whose rows lie one number after the other, that
    pointwise work is faster at than a kernel whose vectors have so many `lanes`."""
    if not is_pointwise(call, buffers) or call.transposed or call.image.strides[-1] != 1:
        return False
    known = all(isinstance(n, int) for n in call.image.shape)
    if not known or buffers[call.image.buffer].dtype != dtypes.f32:
        return False
    taps = call.channels * prod(call.window)
    if is_depthwise(call) and call.results == 1:
        own = _OWN * -(-call.groups // lanes) * lanes / call.groups
    else:
        own = _OWN + _OWN_READING / call.results
    return taps * _tap(call) < own + _OWN_TAP * taps


def _tap(call: Call) -> int:
    """What one takes of pointwise work on a CPU."""
    *others, last = call.padding
    leaves = ("both" if any(others) else "across") if last else "down" if any(others) else "nowhere"
    reach = (call.window[-1] - 1) * call.dilation[-1]
    width = (call.image.shape[-1] + 2 * last - reach - 1) // call.stride[-1] + 1
    width //= min(2, call.stride[-1])
    return next(t for w, t in zip(_WIDTHS, _TAP[leaves]) if width >= w or w == 1)


def pointwise_gradient(node: Extern, buffers: Mapping[str, Buffer]) -> Call | None:
    """The convolution, turned around, that makes the gradient of the image of such a convolution,
    if it is written out; None of another call."""
    call = call_of(image_gradient(node))
    if is_filter(call, buffers):
        return call
    if call is None or call.groups == 1 or call.results != 1:
        return None
    return call if _is_short(call, _MOST_TAPS, buffers) else None


def is_summed(call: WeightGradient | None, buffers: Mapping[str, Buffer]) -> bool:
    """Whether the gradient of a weight is that of a depthwise convolution, which becomes a sum for
    each element of a window."""
    if call is None or call.groups == 1 or call.channels != 1:
        return False
    images = [buffers[view.buffer] for view in (call.points, call.image)]
    known = all(isinstance(n, int) for n in (*call.points.shape, *call.image.shape))
    alike = images[0].dtype == images[1].dtype and images[0].dtype.is_float
    if not known or not alike or images[0].dtype == dtypes.f64:
        return False
    return prod(call.window) <= _MOST_SUMS and not _cudnn_sums_fast(call)


def _cudnn_sums_fast(call: WeightGradient) -> bool:
    """Whether cuDNN has a kernel with channels last. H100, bf16, 32 images, us, cuDNN and ours: 96
    channels of 56 x 56, 7 x 7, 78 and 564; 3 x 3, 32 and 56; 192 of 28 x 28, 5 x 5, 23 and 56; but
    in steps of two 130 and 70, 3 x 3 so, 64 of 112 x 112, 39 and 68; two results of each of 32
    channels 221 and 45. With channels first ours take 0.19 to 0.6 of the time."""
    last = lies_by_pixel(call.image)
    plain = len(call.window) == 2 and call.results == 1
    return last and plain and (max(call.stride) == 1 or prod(call.window) <= _SHORT_WINDOW)


def _is_short(call: Call, most: int, buffers: Mapping[str, Buffer]) -> bool:
    """Whether there are so few factors of known places, in float32 or 16 bits."""
    image, weight = buffers[call.image.buffer], buffers[call.weight.buffer]
    known = all(isinstance(n, int) for n in call.image.shape[1:])
    alike = image.dtype == weight.dtype and image.dtype.is_float and image.dtype != dtypes.f64
    return known and alike and call.channels * prod(call.window) <= most
