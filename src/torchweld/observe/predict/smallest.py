"""Calls on hardly any data, to learn what each operator costs at least: its dispatch, its checks,
its memory. What is not called here is taken to cost what the smallest operator does."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable

import numpy as np
import torch
import torch.nn.functional as F

from torchweld.observe.measure.trace import Step, walk
from torchweld.observe.measure.traffic import only_looks
from torchweld.runtime import torch_private

_N = 4
_OTHERS_BYTES = 8 << 20


def functions(device: str) -> list[Callable[[], object]]:
    """The operators that models are made of; a gradient can be asked of most results."""
    x = torch.ones(_N, _N, device=device, requires_grad=True)
    image = torch.ones(1, _N, _N, _N, device=device, requires_grad=True)
    rows = torch.zeros(_N, dtype=torch.int64, device=device)
    return [
        *(lambda f=f: f(x) for f in (
            torch.neg, torch.exp, torch.log, torch.sqrt, torch.tanh, torch.sigmoid, torch.relu,
            torch.rsqrt, torch.cos, torch.abs, F.gelu, F.silu, torch.clone, torch.mean, torch.sum,
            torch.amax, torch.all, torch.tril)),
        lambda: F.gelu(x, approximate="tanh"),
        lambda: x + x,
        lambda: x * x,
        lambda: x - x,
        lambda: x / x,
        lambda: x.pow(2),
        lambda: x.mean(-1),
        lambda: x.sum(-1),
        lambda: x.softmax(-1),
        lambda: x.log_softmax(-1),
        lambda: x.to(torch.bfloat16),
        lambda: torch.cat((x, x)),
        lambda: torch.where(x > 0, x, x),
        lambda: x.masked_fill(x > 0, 0.0),
        lambda: (x == x) & (x != x),
        lambda: x.cumsum(-1),
        lambda: x.argmax(-1),
        lambda: torch.arange(_N, device=device),
        lambda: rows.clone().add_(1),
        lambda: x.mm(x),
        lambda: torch.addmm(x[0], x, x),
        lambda: torch.bmm(x[None], x[None]),
        lambda: F.layer_norm(x, (_N,), x[0], x[0]),
        lambda: F.batch_norm(image, None, None, x[0], x[0], training=True),
        lambda: F.batch_norm(image, x[0].detach(), x[0].detach(), x[0], x[0]),
        lambda: F.conv2d(image, image),
        lambda: F.max_pool2d(image, 2),
        lambda: F.scaled_dot_product_attention(image, image, image),
        lambda: F.embedding(rows, x),
        lambda: x.gather(0, rows[None]),
        lambda: x[rows],
        lambda: F.cross_entropy(x, rows),
        lambda: rows[0].item(),
        *_onednn(device, x),
    ]


def run_forward(functions: Iterable[Callable[[], object]], between: Callable[[], object]) -> None:
    """Each twice in a row, cold and warm: in a model some operators come often, some once.
    `between` makes them cold."""
    with torch.no_grad():
        for function in functions:
            between()
            function()
            function()


def run_backward(functions: Iterable[Callable[[], object]], between: Callable[[], object]) -> None:
    """Each function's backward, where its result has one; `between` is called before each."""
    for function in functions:
        between()
        result = function()
        if isinstance(result, torch.Tensor) and result.requires_grad:
            result.backward(torch.ones_like(result))


def large_neighbour(device: str) -> Callable[[], object]:
    """What makes the next operator find a CPU's caches full of other data, as behind a large
    product. A GPU's kernels are launched ahead, so nothing is needed there. By numpy: a trace
    should not see it."""
    if device != "cpu":
        return lambda: None
    source = np.ones(_OTHERS_BYTES // 4, np.float32)
    target = np.empty_like(source)
    return lambda: np.copyto(target, source)


def operator_us(steps: Iterable[Step], device: str) -> dict[str, float]:
    """The time of each operator, its own on a CPU, its kernels' on a GPU: the geometric mean in a
    step (cold and warm are far apart), and the median of that over `steps`."""
    times: dict[str, list[float]] = defaultdict(list)
    for step in steps:
        for name, found in _times(step, device).items():
            times[name].append(statistics.geometric_mean(max(us, 1e-3) for us in found))
    return {name: statistics.median(t) for name, t in times.items() if _is_wanted(name)}


def _times(step: Step, device: str) -> dict[str, list[float]]:
    times: dict[str, list[float]] = defaultdict(list)
    for event in walk(step.operators):
        if device == "cpu":
            times[event.name].append(event.duration_us)
        elif kernels := event.all_kernels():
            times[event.name].append(sum(k.duration_us for k in kernels))
    return times


def _is_wanted(name: str) -> bool:
    if name.startswith("aten::"):
        return not only_looks(name)
    return name.startswith("mkldnn::")


def _onednn(device: str, x: torch.Tensor) -> list[Callable[[], torch.Tensor]]:
    if device != "cpu" or not torch.backends.mkldnn.is_available():
        return []
    plain = x.detach()
    return [lambda: torch_private.onednn_linear(plain, plain, None, "none", None)]
