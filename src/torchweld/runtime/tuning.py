"""Measured choices between ways to do one calculation, kept on disk: a second process measures
nothing, and decides as the first did."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping, Sequence

import torch

from torchweld.capture.torch_private import without_modes
from torchweld.codegen.source import KernelBundle
from torchweld.core import dtypes
from torchweld.core.options import Options
from torchweld.ir.nodes import Buffer, Graph
from torchweld.ir.printer import text
from torchweld.runtime.cache import Artifacts, digest, open_cache
from torchweld.runtime.load import load
from torchweld.runtime.placement import span
from torchweld.runtime.plan_cache import device_identity

Timer = Callable[[Sequence[Callable[[], object]], str], Sequence[float]]  # -> us of each call

_SUFFIX = ".times.json"
_MARGIN = 1.03  # a candidate must win by more than what repeated medians differ by


class TimingDatabase:
    """Microseconds of each way, by a key of what was timed, the device and the versions."""

    def __init__(self, artifacts: Artifacts) -> None:
        self._artifacts = artifacts

    def key(self, device: str, *signature: str) -> str:
        return digest(torch.__version__, *device_identity(device), *signature)

    def get(self, key: str, count: int) -> tuple[float, ...] | None:
        """The times of `count` ways, None where they are not known."""
        content = self._artifacts.get(key, _SUFFIX)
        try:
            times = json.loads(content) if content is not None else ()
        except ValueError:
            return None
        valid = len(times) == count and all(isinstance(t, (int, float)) for t in times)
        return tuple(times) if valid and times else None

    def put(self, key: str, times_us: Sequence[float]) -> None:
        self._artifacts.put(key, _SUFFIX, json.dumps(list(times_us)).encode())


class Tuner:
    """Times whole graphs as programs on random inputs. `timer`: `profile.timers.paired_medians`.
    Once `options.tune_seconds` are spent it measures no more."""

    def __init__(self, options: Options, timer: Timer) -> None:
        self._options = options.with_(cuda_graphs=False)
        self._timer, self._left_s = timer, options.tune_seconds if options.tune else 0.0
        self._database = TimingDatabase(open_cache(options))

    def faster(self, now: Graph, candidate: Graph) -> bool:
        """Whether `candidate` wins beyond the noise; a tie, or no time left to measure: False."""
        times = self.times_us([now, candidate])
        return times is not None and times[1] * _MARGIN < times[0]

    def times_us(
        self, graphs: Sequence[Graph], bundles: Sequence[Mapping[str, KernelBundle]] = ()
    ) -> tuple[float, ...] | None:
        """Times of graphs with known sizes and the same inputs. `bundles`: the kernels of each."""
        device = next(iter(graphs[0].buffers.values())).device
        kernels = [bundles[i] if i < len(bundles) else {} for i in range(len(graphs))]
        sources = [s.text for b in kernels for k in b.values() for s in k.sources]
        key = self._database.key(device, *(_canonical(g) for g in graphs), *sources)
        known = self._database.get(key, len(graphs))
        if known is not None or self._left_s <= 0:
            return known
        start = time.perf_counter()
        with without_modes():  # this may be called while fake tensors are traced
            known = tuple(self._measure(graphs, kernels, device))
        self._left_s -= time.perf_counter() - start
        self._database.put(key, known)
        return known

    def _measure(self, graphs, kernels, device: str) -> Sequence[float]:
        inputs = _random_inputs(graphs[0])
        calls = [self._call(g, k, inputs) for g, k in zip(graphs, kernels)]
        return self._timer(calls, torch.device(device).type)

    def _call(self, graph: Graph, bundles, inputs: list) -> Callable[[], object]:
        frozen = {
            p for p, n in enumerate(graph.inputs) if n is not None and graph.buffers[n].frozen
        }
        program = load(graph, bundles, {}, self._options, static_inputs=frozenset(frozen))
        return lambda: program(list(inputs))


def _canonical(graph: Graph) -> str:
    """The text with names replaced by numbers: layers that differ in names only are timed once."""
    names = [graph.name, *graph.buffers, *(n.name for n in graph.nodes)]
    numbers = {name: f"${number}" for number, name in enumerate(names)}
    return re.sub(r"[\w.]+", lambda word: numbers.get(word[0], word[0]), text(graph))


def _random_inputs(graph: Graph) -> list[torch.Tensor | None]:
    generator = torch.Generator().manual_seed(0)
    return [n and _random(graph.buffers[n], generator) for n in graph.inputs]


def _random(buffer: Buffer, generator: torch.Generator) -> torch.Tensor:
    """Normal numbers, small integers or booleans in the buffer's layout."""
    count, dtype = span(buffer.shape, buffer.strides, {}), dtypes.to_torch(buffer.dtype)
    if buffer.dtype.is_float:
        memory = torch.randn(count, generator=generator).to(dtype)
    else:
        memory = torch.randint(0, 2, (count,), generator=generator).to(dtype)
    return memory.as_strided(buffer.shape, buffer.strides).to(buffer.device)
