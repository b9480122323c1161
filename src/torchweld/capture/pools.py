"""Average pooling whose windows neither overlap nor leave anything out.

    adaptive_avg_pool2d to sizes that divide      avg_pool2d
    the gradient of either                        gradient / window, repeated over the window

Gradients of others: capture/pool_gradients.py.
"""

from __future__ import annotations

import torch

aten = torch.ops.aten


def adaptive(x, size):
    """x [..., H, W] -> [..., *size]. (`avg_pool2d` takes no image without channels.)"""
    empty = any(isinstance(n, int) and n == 0 for n in x.shape[:-2])
    window = None if empty else _window(x.shape, size)
    return NotImplemented if window is None else aten.avg_pool2d.default(x, window, window)


def adaptive_backward(gradient, x):
    window = _window(x.shape, gradient.shape[-2:])
    return NotImplemented if window is None else _repeated(gradient, window, x)


def backward(
    gradient, x, window, stride, padding, ceil_mode, count_include_pad, divisor_override=None
):
    """Of avg_pool2d."""
    whole = _window(x.shape, gradient.shape[-2:])
    plain = not any(padding) and not divisor_override and list(stride or window) == list(window)
    return _repeated(gradient, whole, x) if plain and whole == list(window) else NotImplemented


def _window(shape, size) -> list[int] | None:
    """Rows and columns of each window."""
    sides = (*shape[-2:], *size)
    if not all(isinstance(n, int) and n > 0 for n in sides):
        return None
    height, width, rows, columns = sides
    return None if height % rows or width % columns else [height // rows, width // columns]


def _repeated(gradient, window: list[int], x):
    """In the layout of `x`."""
    *outer, rows, columns = gradient.shape
    height, width = window
    each = (gradient / (height * width))[..., None, :, None]
    whole = each.expand(*outer, rows, height, columns, width)
    whole = whole.reshape(*outer, rows * height, columns * width)
    last = x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last)
    if last and not x.is_contiguous():
        return whole.contiguous(memory_format=torch.channels_last)
    return whole


DECOMPOSITIONS = {
    aten._adaptive_avg_pool2d.default: adaptive,
    aten._adaptive_avg_pool2d_backward.default: adaptive_backward,
    aten.avg_pool2d_backward.default: backward,
}
