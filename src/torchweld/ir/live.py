"""How many values of a Comp wait for their last reader at once."""

from __future__ import annotations

from torchweld.ir.nodes import Comp, Value, operands, store_operands


def most_live(comp: Comp) -> int:
    """Values alive at once, constants and loads that can be repeated left out."""
    last: dict[Value, int] = {}
    for value, instr in enumerate(comp.body):
        for used in operands(instr):
            last[used] = value
    end = len(comp.body)
    for store in comp.stores:
        for used in store_operands(store):
            last[used] = max(last.get(used, 0), used + 1)
    ends = [0] * (end + 2)
    alive = most = 0
    for value, instr in enumerate(comp.body):
        if operands(instr):
            alive += 1
            ends[min(last.get(value, value), end)] += 1
        most = max(most, alive)
        alive -= ends[value]
    return most
