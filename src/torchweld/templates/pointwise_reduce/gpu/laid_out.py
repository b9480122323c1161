"""A Kernel in Gluon, where each tile has a layout."""

from __future__ import annotations

from torchweld.ir.access import Access
from torchweld.templates.pointwise_reduce.gpu.emit import Kernel


class LaidOut(Kernel):
    """As in Triton, but that a tile of pointers gets its layout from the indices."""

    @property
    def memory(self) -> list[str]:
        """Names of pointers and sizes."""
        return [*self._pointers.values(), *self._sizes.values()]

    @property
    def arguments(self):
        """(buffer of each pointer, size of each number), in the order of `memory`."""
        return tuple(self._pointers), tuple(self._sizes)

    def address(self, access: Access, along: str, tile: bool = True) -> str:
        terms = [self.offset(access.offset)]
        terms += [f"{self.value(v)} * {self.size(stride)}" for v, stride in access.refs]
        axes = access.offset.axes.union(*(self.axes[v] for v, _ in access.refs))
        missing = set(along) - set(self.along(axes)) & set(self._names)
        terms += [f"{self._names[d]} * 0" for d in sorted(missing)]
        return f"{self.pointer(access.buffer)} + ({' + '.join(terms)})"
