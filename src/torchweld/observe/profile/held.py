"""Memory over a step, from the record of its calls: how much is held after each, and what was held
at the peak."""

from __future__ import annotations

from collections.abc import Sequence

from torchweld.observe.measure.recorder import Block, Recording
from torchweld.observe.profile.rows import Runs
from torchweld.observe.record.profile import Alive, Memory

_MOST_ALIVE = 100  # the largest are named


def held_memory(recording: Recording, runs: Runs, resident_bytes: int) -> Memory:
    """`runs`: of one step, one for each call or fewer; they say when."""
    levels = _levels(recording)
    times = _times(recording, runs)
    peak = max(range(len(levels)), key=levels.__getitem__, default=0)
    alive = [b for b in recording.blocks if _is_alive(b, peak)]
    alive.sort(key=lambda b: -b.bytes)
    return Memory(
        peak_bytes=levels[peak] if levels else 0,
        resident_bytes=resident_bytes,
        peak_at_us=times.get(peak),
        timeline=[(times[at], level) for at, level in enumerate(levels) if at in times],
        alive=[_alive(b, recording) for b in alive[:_MOST_ALIVE]],
    )


def _levels(recording: Recording) -> list[int]:
    """Bytes held while each call runs, with what it makes."""
    changes = [0] * (len(recording.calls) + 1)
    for block in recording.blocks:
        changes[min(block.call, len(recording.calls))] += block.bytes
        if block.freed is not None and block.freed < len(changes):
            changes[block.freed] -= block.bytes
    levels, level = [], 0
    for change in changes[: len(recording.calls)]:
        level += change
        levels.append(level)
    return levels


def _is_alive(block: Block, call: int) -> bool:
    return block.call <= call and (block.freed is None or block.freed > call)


def _times(recording: Recording, runs: Runs) -> dict[int, float]:
    """When each call starts, by its position; calls that share a task follow one another."""
    positions = {id(call.place): at for at, call in enumerate(recording.calls)}
    found: dict[int, float] = {}
    for run in runs:
        at = positions.get(id(run.task.places[0])) if run.task.places else None
        if at is not None:
            found.setdefault(at, run.start_us)
    return found


def _alive(block: Block, recording: Recording) -> Alive:
    calls: Sequence = recording.calls
    maker = calls[block.call] if block.call < len(calls) else None
    return Alive(block.bytes, str(block.meta), maker.place if maker else None,
                 _role(block, recording))


def _role(block: Block, recording: Recording) -> str:
    """output: lives on; saved: made by the forward and freed in the backward; else temporary."""
    calls = recording.calls
    if block.freed is None:
        return "output"
    backward = [at for at, call in enumerate(calls) if call.backward]
    crosses = backward and block.call < backward[0] < block.freed
    return "saved" if crosses else "temporary"
