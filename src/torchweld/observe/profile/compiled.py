"""torchweld's programs: each range of a trace, and each kernel launched in it, tied to the node of
the graph that it runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from torchweld.ir.nodes import Comp, Extern
from torchweld.observe.measure.match import match_names
from torchweld.observe.measure.trace import Device, Host, Step, walk
from torchweld.observe.measure.traffic import only_looks
from torchweld.observe.predict.work import node_work
from torchweld.observe.profile.eager import kind_of, spread
from torchweld.observe.profile.rows import Run, Runs, Task
from torchweld.observe.record.profile import Place
from torchweld.runtime.regions import PREFIX, region_name

_INDUCTOR = "_cpp_fused_"  # in the name of a kernel that Inductor wrote for the CPU
_INDUCTOR_GPU = "triton_"  # how those for a GPU begin


def tasks_of(records: Sequence) -> dict[str, Task]:
    """The task of each node of the records' graphs, by the name of its range."""
    return {
        region_name(record.graph.name, node.name): _task(node, record)
        for record in records
        for node in record.graph.nodes
    }


def region_runs(tasks: Mapping[str, Task], steps: Sequence[Step]) -> list[Runs]:
    """On a CPU: a Run for each range, each kernel of Inductor, and operators beside them."""
    return [[_run(event, tasks, step) for event in _kernels_in(step.operators)] for step in steps]


def launched_in(tasks: Mapping[str, Task], step: Step) -> list[Task]:
    """On a GPU: the task of each kernel of a step that was traced with ranges, in order of time."""
    found: dict[int, Task] = {}
    for event in walk(step.operators):
        task = tasks.get(event.name)
        if task is not None:
            kernels = event.all_kernels()
            for kernel, work in zip(kernels, spread(kernels, task.work)):
                kind = kind_of(kernel, task.kind)
                found[id(kernel)] = replace(task, name=kernel.name, kind=kind, work=work)
    return [found.get(id(k), Task(k.name, kind_of(k, "operator"), ())) for k in step.kernels]


def replayed_runs(tasks: Sequence[Task], steps: Sequence[Step]) -> list[Runs]:
    """On a GPU, as the user runs it, in CUDA graphs: kernels are those of `tasks`, by name and
    order."""
    return [_replayed(tasks, step) for step in steps]


def _replayed(tasks: Sequence[Task], step: Step) -> Runs:
    places = match_names([t.name for t in tasks], [k.name for k in step.kernels])
    runs = []
    for kernel, at in zip(step.kernels, places):
        task = _untied(kernel) if at is None else tasks[at]
        runs.append(Run(task, kernel.start_us - step.start_us, kernel.duration_us))
    return runs


def _untied(kernel: Device) -> Task:
    usual = "generated" if kernel.name.startswith(_INDUCTOR_GPU) else "operator"
    return Task(kernel.name, kind_of(kernel, usual), ())


def _task(node: Comp | Extern, record) -> Task:
    places = tuple(map(Place.of, node.origins))
    name = node.target if isinstance(node, Extern) else node.name
    what = "library" if isinstance(node, Extern) else "generated"
    region = region_name(record.graph.name, node.name)
    work = node_work(node, record.graph)
    return Task(name, what, places, record.kind == "backward", work, region)


def _kernels_in(roots: Sequence[Host]) -> list[Host]:
    """Ranges of nodes, Inductor's C++ kernels, and operators outside of them."""
    found: list[Host] = []
    for event in roots:
        found += [event] if _is_kernel(event.name) else _kernels_in(event.children)
    return found


def _is_kernel(name: str) -> bool:
    return name.startswith(PREFIX) or _INDUCTOR in name or (
        name.startswith("aten::") and not only_looks(name))


def _run(event: Host, tasks: Mapping[str, Task], step: Step) -> Run:
    """Of a library call, the operators in it: the rest is the host's."""
    task = tasks.get(event.name) or Task(event.name, "operator", ())
    if task.kind == "library" and event.children:
        first, last = event.children[0], event.children[-1]
        return Run(task, first.start_us - step.start_us, last.end_us - first.start_us)
    return Run(task, event.start_us - step.start_us, event.duration_us)
