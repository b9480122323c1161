"""What kernels of a recorded graph read and write where a caller has it, in place of copies: their
parameters are set for each replay."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from types import ModuleType

from torchweld.ir.nodes import Comp, View, views
from torchweld.ir.size import evaluate
from torchweld.runtime.launch_table import LaunchTable
from torchweld.runtime.loaded import Loaded
from torchweld.runtime.placement import buffer_bytes, tail_start
from torchweld.runtime.program import Paused
from torchweld.targets.target import Target

_SET_S = 0.2e-6  # of the host, for new parameters of a recorded kernel
_COPIES_S = 1.5e-6  # of a kernel of copies, beside its bytes

Copied = tuple[Sequence[int], Sequence[int]]


@dataclass(frozen=True)
class Moved:
    """`inputs`, `outputs`: the slots of those that are not copied, by position. `kernels`: the
    address of each launch's row and its node, by turns."""

    inputs: Mapping[int, int] = field(default_factory=dict)
    outputs: Mapping[int, int] = field(default_factory=dict)
    kernels: tuple[int, ...] = ()


def moved_in(
    graph: int, loaded: Loaded, paused: Paused, copied: Copied, native: ModuleType, table: Target
) -> Moved:
    """In a recorded graph, by its handle, that is not instantiated yet. `copied`: positions of
    inputs and of outputs that are copied otherwise."""
    names = (
        {p: n for p in copied[0] if (n := loaded.graph.inputs[p])},
        {p: loaded.graph.outputs[p].buffer for p in copied[1]},
    )
    may = movable(loaded, paused.shaped.sizes)
    if may.isdisjoint(n for side in names for n in side.values()):
        return Moved()
    launches = _launches(graph, paused, native)
    unknown = {slot for launch in launches if not launch.node for slot in launch.slots}
    known = {slot for launch in launches for slot in launch.slots} - unknown
    slots = loaded.placement.slots
    sides = []
    for side in names:
        left = {p: slots[n] for p, n in side.items() if n in may and slots[n] in known}
        copies_s = {p: _copy_s(loaded, paused, side[p], table) for p in left}
        sides.append(_cheaper(left, launches, copies_s, all_of_it=len(left) == len(side)))
    moving = {slot for side in sides for slot in side.values()}
    kernels = _touching(launches, moving)
    return Moved(*sides, tuple(word for k in kernels for word in (k.row, k.node)))


def _copy_s(loaded: Loaded, paused: Paused, name: str, table: Target) -> float:
    size = buffer_bytes(loaded.graph.buffers[name], paused.shaped.sizes)
    return 2 * size / table.dram_bytes_per_s


def _cheaper(
    slots: Mapping[int, int], launches: Sequence[_Launch], copies_s: Mapping[int, float],
    all_of_it: bool,
) -> dict[int, int]:  # fmt: skip
    """Those of the inputs, or of the outputs, that are better not copied: all, where that saves the
    kernel of copies, too (`all_of_it`: there are no others), or some."""

    def sets_s(moving: Iterable[int]) -> float:
        return _SET_S * len(_touching(launches, set(moving)))

    if sets_s(slots.values()) <= sum(copies_s.values()) + all_of_it * _COPIES_S:
        return dict(slots)
    return {p: slot for p, slot in slots.items() if sets_s((slot,)) <= copies_s[p]}


def _touching(launches: Iterable[_Launch], slots: Set[int]) -> list[_Launch]:
    return [launch for launch in launches if not slots.isdisjoint(launch.slots)]


@dataclass(frozen=True)
class _Launch:
    """`row`: its address; `node`: 0 if it was not found; `slots`: that it takes addresses from."""

    row: int
    node: int
    slots: frozenset[int]


def _launches(graph: int, paused: Paused, native: ModuleType) -> list[_Launch]:
    tables = [t for t in paused.shaped.keep_alive if isinstance(t, LaunchTable)]
    told = tuple(word for t in tables for word in (t.address, len(t.plans)))
    found = native.find(graph, told, paused.bases.buffer_info()[0])
    plans = [plan for t in tables for plan in t.plans]
    return [
        _Launch(row, node, frozenset(slot for _, slot, _ in plan.moving))
        for row, node, plan in zip(found[::2], found[1::2], plans)
    ]


def movable(loaded: Loaded, sizes: Mapping[str, int]) -> frozenset[str]:
    """Inputs that kernels alone read, and whole outputs that kernels alone touch, none of them
    after the recorded part."""
    graph, kinds = loaded.graph, loaded.placement.kinds
    start = tail_start(graph, sizes) if loaded.has_tail else len(graph.nodes)
    barred = {
        name
        for position, node in enumerate(graph.nodes)
        for name in (*node.reads, *node.writes)
        if position >= start or not _is_launched(loaded, node, name)
    }
    inputs = {n for n in graph.inputs if kinds.get(n) == "input"} - loaded.static_buffers
    return frozenset((inputs | _whole_outputs(loaded, sizes)) - barred)


def _is_launched(loaded: Loaded, node, name: str) -> bool:
    """Whether kernels are all that touches `name` in this node."""
    if not isinstance(node, Comp) or not loaded.is_compiled(node):
        return False
    return all(name not in (filled, init) for filled, init in loaded.bundles[node.name].prefill)


def _whole_outputs(loaded: Loaded, sizes: Mapping[str, int]) -> set[str]:
    """Returned once, as they are."""
    graph, kinds = loaded.graph, loaded.placement.kinds
    times = Counter(v.buffer for v in views(graph.outputs))
    return {
        v.buffer
        for v in graph.outputs
        if isinstance(v, View) and kinds[v.buffer] == "output" and times[v.buffer] == 1
        and _is_whole(v, graph.buffers[v.buffer], sizes)
    }  # fmt: skip


def _is_whole(view: View, buffer, sizes: Mapping[str, int]) -> bool:
    known = [_known(part, sizes) for part in (view.shape, view.strides)]
    return evaluate(view.offset, sizes) == 0 and known == [
        _known(part, sizes) for part in (buffer.shape, buffer.strides)
    ]


def _known(part: Sequence, sizes: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(evaluate(size, sizes) for size in part)
