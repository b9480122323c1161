"""What is wrong with one program: the contract against eager in float64, and the interpreter after
each pass."""

from __future__ import annotations

import math
import re
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from itertools import takewhile
from random import Random

import torch

from torchweld.exact import fuzz
from torchweld.exact.campaign.gates import (
    drawn_rates,
    drawn_tiles,
    few_bytes_are_large,
    opened,
)
from torchweld.exact.campaign.modules import ModuleSample
from torchweld.exact.campaign.operators import Sample
from torchweld.exact.campaign.staged import Interpreter
from torchweld.exact.fuzz import differences
from torchweld.exact.programs import Program

Case = Program | Sample | ModuleSample
Check = Callable[[Case], list[str]]

# Not wrong: the values decide shapes, or the way, so that no graph is captured.
_NO_GRAPH = (
    "DataDependentOutput", "DynamicOutputShape", "dynamic output shape", "is fused in pieces",
)  # fmt: skip
_UNTRACED = "was not traced"


# Programs work on numbers of size one: where eager cancels to zero exactly, a rounding is left.
BUDGET = replace(fuzz.BUDGET, absolute=2e-7)
_CALLS = 4  # a graph is recorded at the second


def interpreted(case: Case, device: str = "cpu") -> list[str]:
    """Plans for `device`, nothing compiled; forward and backward."""
    interpreter, made = Interpreter(device=device), []

    def fuse(function: Callable) -> Callable:
        made.append(interpreter.fuse(function))
        return made[-1]

    with _gates(case):
        found = _differences(case, fuse)
        found += _of_plans(case, interpreter, made[0], found)
    return _told(case, interpreter.found + found)


# Before what is wrong with planned graphs in their own types, and not with lowered ones.
PLANNED = "planned, "


def _of_plans(
    case: Case, interpreter: Interpreter, call: Callable, lowered: list[str]
) -> list[str]:
    """Where fusion keeps what eager rounds, two kernels may differ about one number: in float64,
    as passes are compared, they do not."""
    if interpreter.found:  # of some pass already
        return []
    interpreter.planned = True
    found = _differences(case, lambda function: call)
    interpreter.planned = False
    return [PLANNED + f for f in found if f not in lowered]


def compiled(case: Case, device: str = "cpu") -> list[str]:
    """Kernels, by Dynamo; `device`: "cpu" or "cuda", where all of it runs. Forward and backward,
    and then without gradients, which some operations are written out for in another way."""
    with _gates(case):
        return _with_and_without_gradients(case, _by_dynamo, device)


def _by_dynamo(function: Callable, **options) -> Callable:
    torch.compiler.reset()
    return torch.compile(function, backend="torchweld", options=options or None)


def _with_and_without_gradients(case: Case, fuse: Callable, device: str) -> list[str]:
    found = _told(case, _differences(case, fuse, device), device)
    if found or not trains(case):
        return found
    plain = _told(case, _differences(case, fuse, device, train=False), device, train=False)
    return [f"without gradients, {f}" for f in plain]


def dynamic(case: Case, device: str = "cpu") -> list[str]:
    """Plans for any sizes, by Dynamo, nothing compiled: for the case's sizes, and then for others.
    """
    interpreter, made = Interpreter(device=device), []

    def fuse(function: Callable) -> Callable:
        torch.compiler.reset()
        made.append(torch.compile(function, backend=interpreter.backend(), dynamic=True))
        return made[-1]

    with _gates(case):
        found = _differences(case, fuse)
        other = _regrown(case)
        if not found and other is not None and is_fit(other):
            found = [f"other sizes, {f}" for f in _differences(other, lambda function: made[-1])]
        found += _of_plans(case, interpreter, made[0], found)
    return _told(case, interpreter.found + found)


def _regrown(case: Case) -> Case | None:
    """The program for inputs with an element more along each dimension that has two."""
    if not isinstance(case, Program):
        return None
    grown = (replace(i, shape=tuple(n + (n > 1) for n in i.shape)) for i in case.inputs)
    return replace(case, inputs=tuple(grown))


def scheduled(case: Case, device: str = "cpu") -> list[str]:
    """Kernels on a CPU with tiles and a number of threads drawn: any must keep the contract."""
    rng, threads = Random(case.source), torch.get_num_threads()
    with tempfile.TemporaryDirectory() as folder, drawn_tiles(rng), _gates(case):
        torch.set_num_threads(rng.choice((1, 2, 3)))
        try:
            return _told(case, _differences(case, partial(_by_dynamo, cache_dir=folder)))
        finally:
            torch.set_num_threads(threads)


def priced(case: Case, device: str = "cpu") -> list[str]:
    """As `compiled`, with plans for a device whose rates are drawn: small programs go ways that are
    fast for large ones alone. For a GPU that is elsewhere, by name, as `interpreted`."""
    rates = drawn_rates(Random(case.source))
    with tempfile.TemporaryDirectory() as folder, rates, _gates(case):
        if device in ("cpu", "cuda"):
            fuse = partial(_by_dynamo, cache_dir=folder, calibrate="off")
            return _with_and_without_gradients(case, fuse, device)
        return interpreted(case, device)


def replayed(case: Case, device: str = "cpu") -> list[str]:
    """Inference, of which the last of several calls is compared: on a GPU, a replay of a recorded
    graph."""
    with few_bytes_are_large(), _gates(case):
        found = _differences(case, called_again, device, train=False)
        return _told(case, found, device, train=False)


def called_again(function: Callable, **options) -> Callable:
    """`function` by Dynamo, called several times, the first with copies of its inputs."""
    fused = _by_dynamo(function, **options)

    def last_of_several(*inputs):
        for _ in range(_CALLS - 1):
            fused(*(x.clone() if isinstance(x, torch.Tensor) else x for x in inputs))
        return fused(*inputs)

    return last_of_several


def _gates(case: Case) -> AbstractContextManager[None]:
    return opened() if getattr(case, "small_chunks", False) else nullcontext()


CHECKS = {
    "interpreted": interpreted, "compiled": compiled, "dynamic": dynamic, "scheduled": scheduled,
    "priced": priced, "replayed": replayed,
}  # fmt: skip


def _told(
    case: Case, found: list[str], device: str = "cpu", train: bool | None = None
) -> list[str]:
    """Less what is none of ours: torch's tracing has it too."""
    found = [f for f in found if not any(reason in f for reason in _NO_GRAPH)]
    if any(_UNTRACED in f for f in found):
        if _traces(case, device, train):
            return found
        found = [f for f in found if _UNTRACED not in f]
    if not found or is_broken(found):
        return found
    return [] if _differences(case, Interpreter(plain=True).fuse, device, train) else found


def _traces(case: Case, device: str, train: bool | None) -> bool:
    """Whether torch's own tracing makes a graph of the case."""
    torch.compiler.reset()
    call = torch.compile(case.function(device=place_of(device)), backend="aot_eager")
    inputs = [t.to(place_of(device)) for t in case.make_inputs()]
    try:
        fuzz.results_of(case, call, inputs, trains(case) if train is None else train)
    except Exception:
        return False
    return True


def _differences(
    case: Case, fuse: Callable, device: str = "cpu", train: bool | None = None
) -> list[str]:
    """`train`: None for what `trains` says."""
    train = trains(case) if train is None else train
    return differences(case, fuse, BUDGET, train=train, device=device)


def place_of(device: str) -> str:
    """Where eager runs: with the kernels, or on the CPU beside plans for `device`."""
    return "cuda" if device == "cuda" else "cpu"


def is_broken(found: Iterable[str]) -> bool:
    """Whether CUDA reported an error after which nothing more runs in this process."""
    return any("CUDA error" in f for f in found)


def is_fit(case: Case, device: str = "cpu") -> bool:
    """Whether eager itself runs it, forward and backward, and gives the same twice."""
    try:
        return not _differences(case, lambda function: function, device)
    except Exception:
        return False


def trains(case: Case) -> bool:
    """Whether it runs backward, too."""
    writes = isinstance(case, Program) and case.writes
    return not writes and any(t.is_floating_point() for t in case.make_inputs())


def shrunk(
    case: Case, found: list[str], check: Check, seconds: float = math.inf
) -> tuple[Case, list[str]]:
    """The smallest case found within `seconds` that still fails, and what is wrong with it. `check`
    says of a case that is fit what is wrong with it."""
    end = time.monotonic() + seconds
    while not is_broken(found):
        candidates = takewhile(lambda _: time.monotonic() < end, smaller(case))
        wrong = ((c, _wrong(c, check)) for c in candidates)
        smallest = next((pair for pair in wrong if pair[1]), None)
        if smallest is None:
            break
        case, found = smallest
    return case, found


def _wrong(case: Case, check: Check) -> list[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return check(case)
        except Exception:
            return []


def smaller(case: Case) -> Iterator[Case]:
    """Cases with one part less, none of which need be valid."""
    if not isinstance(case, Program):
        yield from case.smaller()
        return
    if len(case.outputs) > 1:
        yield from (replace(case, outputs=(o,), bitwise=frozenset()) for o in case.outputs)
    for position, line in enumerate(case.lines):
        yield from _without(case, position, line)
    for position, given in enumerate(case.inputs):
        if (given.layout, given.values) != ("plain", "normal"):
            inputs = list(case.inputs)
            inputs[position] = replace(given, layout="plain", values="normal")
            yield replace(case, inputs=tuple(inputs))


def _without(case: Program, position: int, line: str) -> Iterator[Program]:
    """Without a line, or with an earlier value in its place."""
    before, after = case.lines[:position], case.lines[position + 1 :]
    yield replace(case, lines=(*before, *after))
    name, expression = line.split(" ")[0], line.partition(" = ")[2]
    earlier = [f"x{k}" for k in range(len(case.inputs))] + [l.split(" ")[0] for l in before]
    if expression in earlier:
        yield _renamed(replace(case, lines=(*before, *after)), name, expression)
    elif name.isidentifier():
        for value in dict.fromkeys(earlier):
            yield replace(case, lines=(*before, f"{name} = {value}", *after))


def _renamed(case: Program, old: str, new: str) -> Program:
    """Reading `new` wherever it reads `old`."""
    lines = tuple(re.sub(rf"\b{old}\b", new, line) for line in case.lines)
    outputs = dict.fromkeys(new if o == old else o for o in case.outputs)
    return replace(case, lines=lines, outputs=tuple(outputs), bitwise=frozenset())
