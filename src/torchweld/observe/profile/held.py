"""Memory over a step: what is held while each call of eager, or each node of torchweld's programs,
runs, and what was held at the peak."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from torchweld.ir.nodes import Graph, views
from torchweld.observe.measure.recorder import Block, Call, Recording
from torchweld.observe.predict.work import buffer_meta
from torchweld.observe.profile.rows import Runs
from torchweld.observe.record.profile import Alive, Memory, Place
from torchweld.runtime.regions import region_name
from torchweld.templates.pointwise_reduce.price import bytes_of

_MOST_ALIVE = 100  # the largest are named


@dataclass(frozen=True)
class _Life:
    """What is held from event `first` to `last` of a program, both included; -1: it was there
    before; as many as there are events: it is there afterwards."""

    held: Alive
    first: int
    last: int


_Program = tuple[Sequence[Hashable], list[_Life]]  # names of its events in order, and lives
_Starts = Iterable[tuple[Hashable, float]]  # (name of an event, microseconds from the step's start)


def recorded_memory(recording: Recording, runs: Runs, resident_bytes: int) -> Memory:
    """Of eager. `runs`: of one step, one for each call or fewer; they say when. Calls that share a
    task follow one another."""
    calls = recording.calls
    backward = next((at for at, call in enumerate(calls) if call.backward), len(calls))
    lives = [_block_life(block, calls, backward) for block in recording.blocks]
    positions = {id(call.place): at for at, call in enumerate(calls)}
    starts: dict[int, float] = {}
    for run in runs:
        at = positions.get(id(run.task.places[0])) if run.task.places else None
        if at is not None:
            starts.setdefault(at, run.start_us)
    return _memory([(range(len(calls)), lives)], starts.items(), resident_bytes)


def planned_memory(
    records: Sequence, runs: Runs, peak_bytes: int, resident_bytes: int
) -> Memory:
    """Of torchweld's programs. `runs`: of one step. `peak_bytes`: as measured, which leaves out
    what a recorded graph keeps between steps; what is alive is told of the graph that holds
    most."""
    programs = [
        ([region_name(r.graph.name, n.name) for n in r.graph.nodes],
         _buffer_lives(r.graph, r.kind == "backward"))
        for r in records
    ]  # fmt: skip
    starts = [(run.task.region, run.start_us) for run in runs]
    return _memory(programs, starts, resident_bytes, peak_bytes)


def _memory(
    programs: Iterable[_Program], starts: _Starts, resident_bytes: int, least_peak: int = 0
) -> Memory:
    levels: dict[Hashable, int] = {}
    peak, peak_at, alive = 0, None, []
    for events, lives in programs:
        here = _levels(lives, len(events))
        levels |= zip(events, here)
        at = max(range(len(here)), key=here.__getitem__, default=0)
        if here and here[at] > peak:
            peak, peak_at = here[at], events[at]
            alive = [life.held for life in lives if life.first <= at <= life.last]
    known = [(start, name) for name, start in starts if name in levels]
    return Memory(
        peak_bytes=max(least_peak, peak),
        resident_bytes=resident_bytes,
        peak_at_us=next((start for start, name in known if name == peak_at), None),
        timeline=[(start, levels[name]) for start, name in known],
        alive=sorted(alive, key=lambda held: -held.bytes)[:_MOST_ALIVE],
    )


def _levels(lives: Iterable[_Life], events: int) -> list[int]:
    """Bytes held while each event runs, with what it makes."""
    changes = [0] * (events + 1)
    for life in lives:
        changes[min(max(life.first, 0), events)] += life.held.bytes
        changes[min(life.last + 1, events)] -= life.held.bytes
    return list(accumulate(changes[:events]))


def _block_life(block: Block, calls: Sequence[Call], backward: int) -> _Life:
    """`backward`: the position of the first call that is one."""
    place = calls[block.call].place if block.call < len(calls) else None
    last = len(calls) if block.freed is None else block.freed - 1
    role = "saved" if block.call < backward <= last else "temporary"
    role = "output" if block.freed is None else role
    return _Life(Alive(block.bytes, str(block.meta), place, role), block.call, last)


def _buffer_lives(graph: Graph, frees_inputs: bool) -> list[_Life]:
    """Of what nodes make, and of a backward's inputs that are no parameters."""
    first: dict[str, int] = {}
    if frees_inputs:
        given = (name for name in graph.inputs if name and not graph.buffers[name].frozen)
        first.update(dict.fromkeys(given, -1))
    last: dict[str, int] = {}
    for at, node in enumerate(graph.nodes):
        for name in node.writes:
            if name not in graph.inputs:
                first.setdefault(name, at)
        last.update(dict.fromkeys((*node.reads, *node.writes), at))
    last.update(dict.fromkeys((v.buffer for v in views(graph.outputs)), len(graph.nodes)))
    makers = {name: node for node in reversed(graph.nodes) for name in node.writes}
    return [
        _buffer_life(name, at, last.get(name, at), makers.get(name), graph)
        for name, at in first.items()
    ]


def _buffer_life(name: str, first: int, last: int, maker, graph: Graph) -> _Life:
    """Told by the last operation in the kernel that makes it."""
    buffer = graph.buffers[name]
    place = Place.of(maker.origins[-1]) if maker and maker.origins else None
    role = "saved" if first < 0 else "output" if last == len(graph.nodes) else "temporary"
    size = bytes_of(buffer, graph.hints)
    return _Life(Alive(size, str(buffer_meta(buffer, graph)), place, role), first, last)
