"""What a small training step costs the host: python bench/host.py [--device cuda] [--no-graphs]

Forward and backward of small modules, in eager and by torchweld in turn: the median and the tenth
percentile of each, in us of this process's wall time, and how much more torchweld takes, the median
over pairs. Then the parts of torchweld's step. The device is waited for between steps, which is not
timed. Set OMP_NUM_THREADS=1 on a CPU.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import nn

import torchweld
from torchweld.fused import graphs

PARTS = (
    "call, until the forward's program", "the forward's program", "until the call returns",
    "autograd, until the backward's program", "the backward's program", "until autograd returns",
)  # fmt: skip
WARM = 30  # steps


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(8, 8), nn.LayerNorm(8)

    def forward(self, x):
        return torch.relu(self.norm(self.linear(x)))


def _module(call: Callable) -> nn.Module:
    """A module of a class of its own."""
    return type(call.__name__, (nn.Module,), {"forward": lambda self, *args: call(*args)})()


def cases(size: int) -> Iterator[tuple[str, nn.Module, list[torch.Tensor]]]:
    """`size`: 1, or what sizes are multiplied with."""
    rows, labels = torch.randn(4 * size, 8), torch.randint(0, 8, (4 * size,))
    pairs = [torch.randn(2 * size, 4, 8), torch.randn(2 * size, 8, 4)]
    yield "matmul_batched", _module(torch.bmm), pairs
    yield "matrix_vector", _module(torch.matmul), [rows, torch.randn(8, 1)]
    yield "cross_entropy", _module(F.cross_entropy), [rows, labels]
    yield "huber_loss", _module(F.huber_loss), [rows, torch.randn_like(rows)]
    yield "linear, LayerNorm, relu", Normed(), [rows]


class Step:
    """A forward and its backward. `marks`: nanoseconds at which it went from part to part."""

    def __init__(self, run: Callable, module: nn.Module, inputs: list[torch.Tensor]) -> None:
        self._run, self._inputs = run, inputs
        self._wanted = [t for t in (*module.parameters(), *inputs) if t.requires_grad]
        self._grad = torch.randn_like(run(*inputs))
        self.marks: list[int] = []

    def __call__(self) -> list[int]:
        marks, now = self.marks, time.perf_counter_ns
        marks[:] = (now(),)
        result = self._run(*self._inputs)
        marks.append(now())
        torch.autograd.grad([result], self._wanted, [self._grad], allow_unused=True)
        marks.append(now())
        return marks.copy()


def marked(steps: list[Step]) -> Callable:
    """`compile_graph`, whose programs say in the last step when they begin and end."""
    original = graphs.compile_graph

    def compile_graph(captured, options):
        program, now = original(captured, options), time.perf_counter_ns

        def run(args):
            marks = steps[-1].marks if steps else []
            marks.append(now())
            found = program(args)
            marks.append(now())
            return found

        run.record = program.record
        return run

    return compile_graph


def pairs(eager: Callable, ours: Callable, device: str, seconds: float) -> Iterator[tuple]:
    """The marks of steps of both, in turn."""
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    for step in (eager, ours):
        for _ in range(WARM):
            step()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = []
        for step in (eager, ours):
            step(), wait()  # the first after the other's has its code to fetch again
            found.append(step())
            wait()
        yield tuple(found)


def us(values) -> str:
    ordered = sorted(values)
    middle, tenth = statistics.median(ordered), ordered[len(ordered) // 10]
    return f"{middle / 1e3:7.1f} ({tenth / 1e3:.1f})"


def _parts(marks: list[int]) -> list[int]:
    return [later - earlier for earlier, later in pairwise(marks)]


def show(name: str, module: nn.Module, inputs: list, asked: argparse.Namespace) -> None:
    device, seconds = asked.device, asked.seconds
    fuse = partial(torchweld.fuse, cuda_graphs=not asked.no_graphs)
    module = module.to(device)
    inputs = [t.to(device).requires_grad_(t.is_floating_point()) for t in inputs]
    eager = Step(module, module, inputs)
    ours = Step(fuse(module), module, inputs)
    found = list(pairs(eager, ours, device, seconds))
    whole = [(e[-1] - e[0], o[-1] - o[0]) for e, o in found]
    more = statistics.median(o - e for e, o in whole) / 1e3
    eagers, own = (us(column) for column in zip(*whole))
    print(f"{name}: eager {eagers}, torchweld {own}, {more:.1f} more", flush=True)

    steps: list[Step] = []
    original, graphs.compile_graph = graphs.compile_graph, marked(steps)
    steps.append(Step(fuse(module, numerics="eager"), module, inputs))  # compiled anew
    rows = [o for _, o in pairs(eager, steps[0], device, seconds)]
    graphs.compile_graph = original
    for part, column in zip(PARTS, zip(*map(_parts, rows))):
        print(f"    {us(column)}  {part}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--size", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--no-graphs", action="store_true", help="no CUDA graphs")
    asked = parser.parse_args()
    torch.manual_seed(0)
    for name, module, inputs in cases(asked.size):
        show(name, module, inputs, asked)


if __name__ == "__main__":
    main()
