"""Memory of a CUDA graph, handed out as tensors without a copy.

Each handed-out tensor has a storage of its own, made through DLPack, which keeps the graph's memory
alive, so that a graph may go before they do. Before the next replay writes to that memory, weak
references to those storages say whether any of them, or a view or alias of one, is still in use.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.dlpack import from_dlpack, to_dlpack


class HandedOut:
    """What the latest replay has given away."""

    def __init__(self) -> None:
        self._storages: list[StorageWeakRef] = []

    def in_use(self) -> bool:
        return bool(self._storages) and not all(s.expired() for s in self._storages)

    def give(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Tensors over the memory of these. What is one tensor stays one: autograd copies a
        gradient that is given to two parameters."""
        once = {id(t): from_dlpack(to_dlpack(t)) for t in {id(t): t for t in tensors}.values()}
        self._storages = [StorageWeakRef(t.untyped_storage()) for t in once.values()]
        return [once[id(t)] for t in tensors]
