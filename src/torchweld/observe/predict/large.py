"""Large problems for the operators that do most of a model's arithmetic, to learn the rates that
libraries reach on this device."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F

from torchweld.core.dtypes import torch_name
from torchweld.observe.measure.recorder import record
from torchweld.observe.predict.flops import (
    ATTENTION,
    BACKWARD,
    POINTWISE,
    POINTWISE_BACKWARD,
    SCATTERED,
    TURNED,
)
from torchweld.observe.predict.work import call_work, rate_name
from torchweld.runtime import torch_private

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_LONG_S = 0.2  # at the full size; then a small one must do: no fast code for the dtype
_ROWS = {"cpu": 768, "cuda": 4096}
_IMAGES = {"cpu": 4, "cuda": 128}
_TOKENS = {"cpu": 256, "cuda": 2048}

Call = Callable[[], object]
Best = Callable[[Call], float]  # the seconds of a call

# (call, flops) of a problem that is `1 / shrink` as large in each direction
Problem = tuple[Call, float]
Problems = Callable[[str, torch.dtype, int], Problem]


def operator_rates(device: str, best_s: Best) -> dict[str, float]:
    """"aten::mm float32" -> flops a second, for each operator and dtype that this device has code
    for, and on a CPU for plain arithmetic too."""
    found = {}
    for (operator, dtypes), problem in _TABLE.items():
        for dtype in dtypes:
            if _ONLY_ON.get(operator, device) == device:
                found[f"{operator} {torch_name(dtype)}"] = _rate(problem, device, dtype, best_s)
    if device == "cpu":
        found |= _plain_rates(best_s)
    return {name: rate for name, rate in found.items() if rate}


def _rate(problem: Problems, device: str, dtype: torch.dtype, best_s: Best) -> float | None:
    try:
        call, flops = problem(device, dtype, 3)
        small = flops / best_s(call)
        call, flops = problem(device, dtype, 1)
        return small if flops / small > _LONG_S else flops / best_s(call)
    except RuntimeError:  # no code for the dtype
        return None


def _image(x: torch.Tensor) -> torch.Tensor:
    return x.view(4, _CHANNELS, -1, 32)


def _plain_rates(best_s: Best) -> dict[str, float]:
    """Of arithmetic, in the units of the cost model, on data in the cache."""
    x, found = torch.randn(*_IN_CACHE), {}
    for function in _PLAIN:
        (call,) = record(lambda f=function: f(x), {}).calls
        work = call_work(call)
        found[rate_name(work)] = work.flops / best_s(lambda f=function: f(x))
    return found


def _product(device: str, dtype: torch.dtype, shrink: int) -> Problem:
    n = _ROWS[device] // shrink
    x = torch.randn(n, n, device=device).to(dtype)
    return lambda: torch.mm(x, x), 2.0 * n**3


def _onednn(device: str, dtype: torch.dtype, shrink: int) -> Problem:
    n = _ROWS[device] // shrink
    x = torch.randn(n, n).to(dtype)
    return lambda: torch_private.onednn_linear(x, x, None, "none", None), 2.0 * n**3


def _convolution(
    window: int, backward: bool, device: str, dtype: torch.dtype, shrink: int
) -> Problem:
    """As in the middle of a residual network; `backward`: both of its gradients."""
    n, side, batch = 256 // shrink, 14, _IMAGES[device]
    layout = torch.contiguous_format if device == "cpu" else torch.channels_last

    def make(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device=device).to(dtype, memory_format=layout)

    x, w = make(batch, n, side, side), make(n, n, window, window)
    flops = 2.0 * batch * side**2 * n**2 * window**2
    if not backward:
        return lambda: F.conv2d(x, w, padding=window // 2), flops
    ones, pad, which = (1, 1), (window // 2,) * 2, (True, True, False)
    return lambda: torch.ops.aten.convolution_backward(
        x, x, w, None, ones, pad, ones, False, (0, 0), 1, which), 2 * flops


def _attention(device: str, dtype: torch.dtype, shrink: int) -> Problem:
    n, heads, width = _TOKENS[device] // shrink, 8, 64
    x = torch.randn(1, heads, n, width, device=device).to(dtype)
    return lambda: F.scaled_dot_product_attention(x, x, x), 4.0 * heads * n**2 * width


def _broadcast(device: str, dtype: torch.dtype, shrink: int) -> Problem:
    """One for each result."""
    n = 2048 // shrink
    x = torch.randn(n, n, device=device).to(dtype)
    return lambda: x * x[0], float(n * n)


def _turned(device: str, dtype: torch.dtype, shrink: int) -> Problem:
    n = 1000 // shrink
    x = torch.randn(n, n, device=device).to(dtype)
    return lambda: x + x.T, float(n * n)


_IN_CACHE, _CHANNELS = (128, 768), 32
_PLAIN = (
    torch.exp, torch.tanh, torch.sigmoid, torch.relu, torch.rsqrt, torch.cos, F.gelu, F.silu,
    lambda x: F.gelu(x, approximate="tanh"),
    lambda x: torch.ops.aten.gelu_backward(x, x),
    lambda x: torch.ops.aten.gelu_backward(x, x, approximate="tanh"),
    lambda x: torch.ops.aten.silu_backward(x, x),
    lambda x: x.pow(2),
    lambda x: x.softmax(-1),
    lambda x: F.layer_norm(x, x.shape[1:], x[0], x[0]),
    lambda x: F.batch_norm(_image(x), *x[:4, :_CHANNELS]),
    lambda x: F.batch_norm(_image(x), None, None, *x[:2, :_CHANNELS], training=True),
    lambda x: torch.ops.aten.native_batch_norm_backward(
        _image(x), _image(x), *x[:5, :_CHANNELS], True, 1e-5, (True, True, True)),
    lambda x: F.max_pool2d(_image(x), 3, 2, 1),
)  # fmt: skip
_ONLY_ON = {"mkldnn::_linear_pointwise": "cpu", SCATTERED: "cuda", TURNED: "cpu",
             BACKWARD: "cpu", POINTWISE_BACKWARD: "cpu"}
_TABLE: dict[tuple[str, tuple[torch.dtype, ...]], Problems] = {
    ("aten::mm", _DTYPES): _product,
    ("mkldnn::_linear_pointwise", (torch.float32,)): _onednn,
    ("aten::convolution", _DTYPES[:2]): partial(_convolution, 3, False),
    (POINTWISE, _DTYPES[:2]): partial(_convolution, 1, False),
    (BACKWARD, _DTYPES[:2]): partial(_convolution, 3, True),
    (POINTWISE_BACKWARD, _DTYPES[:2]): partial(_convolution, 1, True),
    (ATTENTION, _DTYPES[:2]): _attention,
    (SCATTERED, _DTYPES): _broadcast,
    (TURNED, _DTYPES): _turned,
}
