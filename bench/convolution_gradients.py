"""Gradients of convolutions in groups: the library's calls against what torchweld makes of them.

    python bench/convolution_gradients.py [--only 7x7] [--dtype bfloat16] [--threads 1]

For each case and layout, times of the gradient of the image and of that of the weight: the call as
eager makes it, and torchweld's, in turn; medians. On a CPU milliseconds of a call (of the
processor's time with one thread), on a GPU of a call among several in a CUDA graph, with four times
as many images. Errors are relative L2 against float64.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

import torchweld

GRADIENTS = ("image", "weight")
IN_GRAPH = 10  # calls


@dataclass(frozen=True)
class Layer:
    """`times`: results of each channel. `width`: channels of a group."""

    batch: int
    channels: int
    size: tuple[int, ...]
    window: int
    step: int = 1
    width: int = 1
    times: int = 1
    dilation: int = 1
    transposed: bool = False

    @property
    def name(self) -> str:
        sides = "x".join(str(self.window) for _ in self.size)
        image = "x".join(map(str, (self.batch, self.channels, *self.size)))
        marks = [f"step {self.step}"] * (self.step > 1) + [f"groups of {self.width}"] * (
            self.width > 1
        )
        return ", ".join([sides, image, *marks, *["transposed"] * self.transposed])

    def arguments(self, dtype: torch.dtype, device: str, last: bool) -> tuple:
        """Of aten.convolution_backward, without what is wanted."""
        sides, groups = len(self.size), self.channels // self.width
        results = self.channels * self.times
        ends = (self.channels, results // groups) if self.transposed else (results, self.width)
        batch = self.batch * (4 if device == "cuda" else 1)
        x = torch.randn(batch, self.channels, *self.size, dtype=dtype, device=device)
        w = torch.randn(*ends, *[self.window] * sides, dtype=dtype, device=device)
        if last:
            layout = {2: torch.channels_last, 3: torch.channels_last_3d}[sides]
            x, w = x.to(memory_format=layout), w.to(memory_format=layout)
        padding = self.dilation * (self.window // 2)
        how = ([self.step] * sides, [padding] * sides, [self.dilation] * sides, self.transposed)
        y = torch.ops.aten.convolution(x, w, None, *how, [0] * sides, groups)
        return torch.randn_like(y), x, w, None, *how, [0] * sides, groups


LAYERS = (
    Layer(8, 96, (56, 56), 3),
    Layer(8, 96, (56, 56), 7),
    Layer(8, 384, (14, 14), 7),
    Layer(8, 768, (7, 7), 7),
    Layer(8, 192, (28, 28), 5),
    Layer(8, 64, (112, 112), 3, step=2),
    Layer(8, 480, (14, 14), 5),
    Layer(8, 240, (28, 28), 5, step=2),
    Layer(8, 32, (112, 112), 3),
    Layer(8, 64, (512,), 9),
    Layer(2, 32, (8, 16, 16), 3),
    Layer(8, 32, (28, 28), 3, times=2),
    Layer(8, 64, (28, 28), 3, width=2),
    Layer(8, 64, (28, 28), 3, width=4),
    Layer(8, 128, (28, 28), 3, width=8),
    Layer(8, 256, (14, 14), 3, width=16),
    Layer(8, 64, (28, 28), 4, step=2, transposed=True),
)


def gradient(wanted: str, arguments: tuple) -> Callable[..., torch.Tensor]:
    """A function of the gradient, the image and the weight."""
    rest, mask = arguments[3:], [wanted == name for name in (*GRADIENTS, "bias")]

    def run(gradient: torch.Tensor, image: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        found = torch.ops.aten.convolution_backward(gradient, image, weight, *rest, mask)
        return found[GRADIENTS.index(wanted)]

    return run


def measured(layer: Layer, wanted: str, last: bool, asked: argparse.Namespace) -> str:
    dtype = getattr(torch, asked.dtype)
    arguments = layer.arguments(dtype, asked.device, last)
    eager, tensors = gradient(wanted, arguments), arguments[:3]
    fused = torchweld.fuse(eager, dynamic=False, cuda_graphs=False)
    with torch.no_grad():
        exact = eager(*(t.double() for t in tensors))
        errors = [_error(f(*tensors), exact) for f in (eager, fused)]
        ways = [lambda f=f: f(*tensors) for f in (eager, fused)]
        times = _paired(ways if asked.device == "cpu" else _graphs(ways), asked)
    cells = [f"{1e3 * t:.3f}" for t in times]
    return " | ".join([*cells, f"{times[0] / times[1]:.2f}", *(f"{e:.1e}" for e in errors)])


def _error(found: torch.Tensor, exact: torch.Tensor) -> float:
    return ((found.double() - exact).norm() / exact.norm()).item()


def _graphs(ways: list[Callable]) -> list[Callable]:
    graphs = []
    for way in ways:
        way()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(IN_GRAPH):
                way()
        graphs.append(graph.replay)
    return graphs


def _paired(ways: list[Callable], asked: argparse.Namespace) -> list[float]:
    """Seconds of a call, medians over rounds."""
    cuda, times = asked.device == "cuda", [[] for _ in ways]
    clock = time.process_time if asked.threads == 1 and not cuda else time.perf_counter
    end = time.monotonic() + asked.seconds
    while time.monotonic() < end or len(times[0]) < 5:
        for way, found in zip(ways, times):
            start = clock()
            way()
            if cuda:
                torch.cuda.synchronize()
            found.append((clock() - start) / (IN_GRAPH if cuda else 1))
    return [statistics.median(found[1:]) for found in times]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default="")
    parser.add_argument("--layout", choices=("first", "last", ""), default="")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--threads", type=int)
    asked = parser.parse_args()
    asked.device = "cuda" if torch.cuda.is_available() else "cpu"
    if asked.threads:
        torch.set_num_threads(asked.threads)
    torch.backends.cudnn.allow_tf32 = False
    print("| case | layout | of the | eager, ms | torchweld, ms | ratio | eager's error | ours |")
    for layer in (one for one in LAYERS if asked.only in one.name):
        for last in (False, True)[: 1 if len(layer.size) == 1 else 2]:
            if asked.layout not in ("", "last" if last else "first"):
                continue
            for wanted in GRADIENTS:
                found = measured(layer, wanted, last, asked)
                layout = "channels last" if last else "channels first"
                print(f"| {layer.name} | {layout} | {wanted} | {found} |", flush=True)


if __name__ == "__main__":
    main()
