"""Memory of a CUDA graph, handed out as tensors without a copy.

Each handed-out tensor has a storage of its own, made through DLPack, which keeps the graph's memory
alive, so that a graph may go before they do. Before the next replay writes to that memory, the
runtime's C++ counts the storages that are left, or weak references say whether any of them, or a
view or alias of one, is still in use.
"""

from __future__ import annotations

from types import ModuleType

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.dlpack import from_dlpack, to_dlpack


class HandedOut:
    """What the latest replay has given away. `native`: see native.py."""

    def __init__(self, native: ModuleType | None) -> None:
        self._native, self._counted = native, None
        self._storages: list[StorageWeakRef] = []

    def in_use(self) -> bool:
        if self._counted is not None:
            return self._native.in_use(self._counted)
        return bool(self._storages) and not all(s.expired() for s in self._storages)

    def give(self, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        """Tensors over the memory of these."""
        if self._native is not None:
            made, self._counted = self._native.hand_out(tensors)
        else:
            made = [from_dlpack(to_dlpack(t)) for t in tensors]
            self._storages = [StorageWeakRef(t.untyped_storage()) for t in made]
        return made
