"""The one library call that the IR itself knows: it raises if indices of the user's were out of
range.

    extern check = "torchweld.check_index"(view(flag, [], [], 0), lowest, extent)

A Comp before it reduces "some index is outside [lowest, extent)" to `flag`, a b1 on the CPU.
"""

from __future__ import annotations

from torchweld.core.errors import IndexOutOfRange
from torchweld.ir.nodes import Extern

CHECK_INDEX = "torchweld.check_index"


def check_index(node: Extern, outside, lowest: int, extent: int) -> None:
    """`outside`: a bool tensor of one element. Raises IndexOutOfRange if it is true; the message
    names the operation, module and line that `node` comes from."""
    if not outside.item():
        return
    origin = node.origins[0]
    raise IndexOutOfRange(
        f"{origin.op} got an index outside [{lowest}, {extent})",
        where=", ".join(filter(None, (origin.module, origin.source))),
        do=f"give indices from {lowest} to {extent - 1}",
    )
