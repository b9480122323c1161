"""The graph under construction: buffers, nodes, fresh names, and the copies made so far."""

from __future__ import annotations

from itertools import islice

from torchweld.capture.lowering.sizes import Sizes
from torchweld.core.dtypes import DType
from torchweld.ir import views
from torchweld.ir.nodes import Buffer, Node, Origin, View
from torchweld.ir.views import Tensor


class GraphBuilder:
    """`round_always`: every result of 16 bits is rounded even where fusion could keep it wide.
    `of_gradient`: what is lowered now is a gradient; a cast of it to more bits is the gradient of
    one to fewer, that somebody asked for; unless it `is_inner_cast`, which nobody did."""

    def __init__(self, round_always: bool = False) -> None:
        self.round_always, self.of_gradient, self.is_inner_cast = round_always, False, False
        self.sizes = Sizes()
        self.buffers: dict[str, Buffer] = {}
        self.nodes: list[Node] = []
        self.mutated: frozenset[str] = frozenset()  # inputs that a call of the graph writes to
        self.origin = Origin("")
        self._buffer_names: dict[str, int] = {}
        self._node_names: dict[str, int] = {}
        self.copies: dict[tuple, Tensor] = {}  # (tensor, layout) -> its copy
        self.checked: dict[tuple, None] = {}  # (index tensor, bounds) that a check has seen
        self._writers: dict[str, list[Node]] = {}  # of the first `_indexed` nodes
        self._indexed = 0

    def fresh(self, name: str, taken: dict[str, int]) -> str:
        """`name`, or name_2, name_3, ... where it is taken."""
        count = taken[name] = taken.get(name, 0) + 1
        return name if count == 1 else self.fresh(f"{name}_{count}", taken)

    def node_name(self, name: str) -> str:
        return self.fresh(name, self._node_names)

    def buffer(
        self, name: str, shape, dtype: DType, strides, device: str, frozen: bool = False
    ) -> Buffer:
        made = Buffer(
            self.fresh(name, self._buffer_names),
            tuple(shape),
            dtype,
            tuple(strides),
            device,
            frozen,
        )
        self.buffers[made.name] = made
        return made

    def emit(self, node: Node) -> None:
        self.nodes.append(node)

    def writers(self, buffer: str) -> list[Node]:
        """The nodes so far that write it."""
        for node in self.nodes[self._indexed :]:
            for name in node.writes:
                self._writers.setdefault(name, []).append(node)
        self._indexed = len(self.nodes)
        return self._writers.get(buffer, [])

    def mark(self) -> tuple:
        """What there is so far, for `back_to`. Names stay taken."""
        return len(self.nodes), [(d, len(d)) for d in (self.buffers, self.copies, self.checked)]

    def back_to(self, mark: tuple) -> None:
        """Takes back all that was added since."""
        nodes, tables = mark
        del self.nodes[nodes:]
        self.buffers, self.copies, self.checked = (dict(islice(d.items(), n)) for d, n in tables)
        self._writers, self._indexed = {}, 0

    def view_of(self, tensor: Tensor) -> View | None:
        """The tensor as a strided window on its buffer's memory; None where it is none."""
        return views.as_view(tensor, self.buffers[tensor.source]) if tensor.buffer else None

    def forget_copies_of(self, buffer: str) -> None:
        """`buffer` has been written: copies and checks made before no longer speak of it."""
        made = {k: [t.source for t in k if isinstance(t, Tensor)] for k in self.copies}
        self.copies = {k: v for k, v in self.copies.items() if buffer not in made[k]}
        self.checked = {k: None for k in self.checked if k[0].source != buffer}
