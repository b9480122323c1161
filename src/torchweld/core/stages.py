"""Where the seconds of compiling a graph go: the pipeline's stages, and the six parts of them that
`explain` and the benchmarks print."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import astuple, dataclass, fields

# Every other stage decides something about the plan.
_PART_OF = {
    "capture": "capture",
    "lower": "lower",
    "generate": "generate",
    "compile": "compile",
    "find plan": "load",
    "keep plan": "load",
    "load": "load",
}


@dataclass(frozen=True, slots=True)
class CompileSeconds:
    """Seconds of the thread that asked for it, so they add up to what it waited. `capture`: by
    torch.export or AOTAutograd; Dynamo does not tell its own. `compile`: waiting for compilers,
    which run beside the other parts. `load`: all else that makes a program of a plan."""

    capture: float = 0.0
    lower: float = 0.0
    plan: float = 0.0
    generate: float = 0.0
    compile: float = 0.0
    load: float = 0.0

    @classmethod
    def of(cls, graphs: Iterable[Mapping[str, float]]) -> CompileSeconds:
        """Of graphs together, each as stage -> seconds."""
        found = dict.fromkeys((f.name for f in fields(cls)), 0.0)
        for stages in graphs:
            for stage, seconds in stages.items():
                found[_PART_OF.get(stage, "plan")] += seconds
        return cls(**found)

    @property
    def total(self) -> float:
        """Of all stages."""
        return sum(astuple(self))

    def __str__(self) -> str:
        """capture 2.41, lower 0.03, plan 0.15, generate 0.04, compile 1.20, load 0.11"""
        return ", ".join(f"{f.name} {getattr(self, f.name):.2f}" for f in fields(self))


class Clock:
    """`clock(name, function, *args, **kwargs)` gives what the function gives, and adds the seconds
    that it took to `seconds[name]`; those of stages within it count there alone."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._inner = 0.0

    def __call__(self, name: str, function: Callable, *args, **kwargs):
        outer, self._inner = self._inner, 0.0
        start = time.perf_counter()
        try:
            return function(*args, **kwargs)
        finally:
            took = time.perf_counter() - start
            self.seconds[name] = self.seconds.get(name, 0.0) + took - self._inner
            self._inner = outer + took


def untimed(name: str, function: Callable, *args, **kwargs):
    """In the place of a Clock."""
    return function(*args, **kwargs)
