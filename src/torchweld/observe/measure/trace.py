"""A profiler's trace, read: operators as trees, device kernels with the operator that launched
them, and the steps that they belong to.

The format is Chrome's, as `torch.profiler` exports it. Times are microseconds.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from torchweld.core.errors import UsageError

STEP = "torchweld.step"
_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
_HOST = ("cpu_op", "user_annotation")
_LAUNCH = ("cuda_runtime", "cuda_driver")


@dataclass
class Host:
    """An operator or a named range on the host, with what it called and the kernels that it
    launched itself. `external`: the trace's id of it."""

    name: str
    start_us: float
    duration_us: float
    external: int | None = None
    children: list[Host] = field(default_factory=list)
    kernels: list[Device] = field(default_factory=list)

    @property
    def end_us(self) -> float:
        """On the trace's clock."""
        return self.start_us + self.duration_us

    def all_kernels(self) -> list[Device]:
        """Of this event and all below it."""
        return self.kernels + [k for child in self.children for k in child.all_kernels()]


@dataclass(frozen=True)
class Device:
    """A kernel, copy or fill on a GPU. `external`: the id of the operator that asked for it."""

    name: str
    start_us: float
    duration_us: float
    copy: bool
    external: int | None = None

    @property
    def end_us(self) -> float:
        """On the trace's clock."""
        return self.start_us + self.duration_us


@dataclass(frozen=True)
class Step:
    """One step: `operators` are roots, in order of time; `kernels` in order of time."""

    start_us: float
    duration_us: float
    operators: tuple[Host, ...]
    kernels: tuple[Device, ...]


@dataclass(frozen=True)
class Trace:
    """`content`: the whole file, as JSON gives it."""

    content: dict
    steps: list[Step]


def read_trace(path: Path) -> Trace:
    """Errors: UsageError for a file that is no such trace."""
    try:
        content = json.loads(path.read_text())
        complete = [e for e in content["traceEvents"] if e.get("ph") == "X"]
        return Trace(content, steps_of(complete))
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        what = type(error).__name__
        raise UsageError(f"{path} is not a trace of torch.profiler ({what})",
                         do="export it again with export_chrome_trace") from None


def steps_of(events: list[dict]) -> list[Step]:
    """Every step, in order. `events`: complete ones ("ph": "X")."""
    by_thread: dict[tuple, list[dict]] = {}
    for event in events:
        if event.get("cat") in (*_HOST, *_LAUNCH):
            by_thread.setdefault((event["pid"], event["tid"]), []).append(event)
    launched = _launched(e for e in events if e.get("cat") in _DEVICE)
    roots = [root for found in by_thread.values() for root in _trees(found, launched)]
    devices = [device for found in launched.values() for device in found]
    _tie_by_id(roots, devices)
    marks = sorted((e for e in events if _is_step(e)), key=lambda e: e["ts"])
    return [_step(mark, roots, devices) for mark in marks]


def walk(roots: Iterable[Host]) -> Iterator[Host]:
    """Every host event, callers before what they call, in order of time."""
    for root in roots:
        yield root
        yield from walk(root.children)


def _is_step(event: dict) -> bool:
    return event.get("cat") == "user_annotation" and event["name"] == STEP


def _launched(events: Iterable[dict]) -> dict[int | None, list[Device]]:
    """By the number of the launch; all kernels of a graph have the same one."""
    found: dict[int | None, list[Device]] = {}
    free: dict[tuple, float] = {}  # when a stream's kernel before ends
    for event in sorted(events, key=lambda e: e["ts"]):
        stream = event["pid"], event["tid"]
        device = _device(event, free.get(stream, event["ts"]))
        free[stream] = device.end_us
        found.setdefault(event["args"].get("correlation"), []).append(device)
    return found


def _device(event: dict, free_us: float) -> Device:
    """A kernel may begin while the one before it on its stream still runs, to wait for it inside:
    its time is what comes after."""
    start, end = max(event["ts"], free_us), max(event["ts"] + event["dur"], free_us)
    return Device(event["name"], start, end - start, event["cat"] != "kernel", _external(event))


def _trees(events: list[dict], launched: dict[int | None, list[Device]]) -> list[Host]:
    """Nested by time, on one thread. Launches hand their kernels to the innermost operator."""
    roots: list[Host] = []
    stack: list[Host] = []
    for event in sorted(events, key=lambda e: (e["ts"], -e["dur"])):
        while stack and event["ts"] >= stack[-1].end_us:
            stack.pop()
        if event["cat"] in _LAUNCH:
            if stack:
                stack[-1].kernels += launched.get(event["args"].get("correlation"), [])
            continue
        if _is_step(event):
            continue
        host = Host(event["name"], event["ts"], event["dur"], _external(event))
        (stack[-1].children if stack else roots).append(host)
        stack.append(host)
    return roots


def _tie_by_id(roots: list[Host], devices: list[Device]) -> None:
    """Kernels whose launch the trace leaves out go to the operator with their id."""
    hosts = list(walk(roots))
    tied = {id(kernel) for host in hosts for kernel in host.kernels}
    by_id = {host.external: host for host in hosts if host.external is not None}
    for device in devices:
        if id(device) not in tied and device.external in by_id:
            by_id[device.external].kernels.append(device)


def _external(event: dict) -> int | None:
    return event.get("args", {}).get("External id")


def _step(mark: dict, roots: list[Host], devices: list[Device]) -> Step:
    start, end = mark["ts"], mark["ts"] + mark["dur"]
    operators = sorted((r for r in roots if start <= r.start_us < end), key=lambda r: r.start_us)
    kernels = sorted((d for d in devices if start <= d.start_us < end), key=lambda d: d.start_us)
    return Step(start, mark["dur"], tuple(operators), tuple(kernels))
