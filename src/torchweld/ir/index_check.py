"""The one library call that the IR itself knows: what to do if indices of the user's were out of
range.

    extern check = "torchweld.check_index"(view(flag, [], [], 0), lowest, extent)

A Comp before it writes to `flag`, a b1, whether some index is outside [lowest, extent). On a CPU
the call raises if it is set. On a GPU it is no call at run time, but says where the runtime has to
look, and which operation to name: see `runtime/index_flags.py`.
"""

from __future__ import annotations

from torchweld.core.errors import IndexOutOfRange
from torchweld.ir.nodes import Extern, Graph
from torchweld.ir.size import Size

CHECK_INDEX = "torchweld.check_index"


def check_index(node: Extern, outside, lowest: int, extent: int) -> None:
    """`outside`: a bool tensor of one element. Raises IndexOutOfRange if it is true; the message
    names the operation, module and line that `node` comes from."""
    if outside.item():
        raise out_of_range(node, lowest, extent)


def out_of_range(node: Extern, lowest: Size, extent: Size, when: str = "") -> IndexOutOfRange:
    """The error of a check that has failed. `when`: in which call, if not in this one."""
    origin = node.origins[0]
    return IndexOutOfRange(
        f"{origin.op} got an index outside [{lowest}, {extent}){when}",
        where=", ".join(filter(None, (origin.module, origin.source))),
        do=f"give indices from {lowest} to {extent - 1}",
    )


def sticky_flags(graph: Graph) -> dict[str, Extern]:
    """The flags on GPUs, by buffer name, each with its check: once set, they stay so until the host
    has seen them."""
    checks = (n for n in graph.nodes if isinstance(n, Extern) and n.target == CHECK_INDEX)
    flags = ((n.reads[0], n) for n in checks)
    return {name: n for name, n in flags if graph.buffers[name].device != "cpu"}
