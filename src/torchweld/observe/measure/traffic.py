"""Which calls of ATen do work, and on what tensors."""

from __future__ import annotations

import torch
from torch.multiprocessing.reductions import StorageWeakRef

_ALLOCATIONS = frozenset((
    "aten::empty", "aten::empty_like", "aten::empty_strided", "aten::empty_permuted",
    "aten::new_empty", "aten::new_empty_strided", "aten::set_", "aten::resize_",
))  # fmt: skip


def allocates(name: str) -> bool:
    """Whether an operator ("aten::empty.memory_format") only finds memory."""
    return name.partition(".")[0] in _ALLOCATIONS


def only_looks(name: str) -> bool:
    """Whether an operator ("aten::view"), by any of its overloads, is a view or an allocation."""
    packet = getattr(torch.ops.aten, name.removeprefix("aten::"), None)
    if packet is None or allocates(name):
        return True
    return any(getattr(packet, overload).is_view for overload in packet.overloads())


def is_view(func, given: list[torch.Tensor], made: list[torch.Tensor]) -> bool:
    """A result that is a window on an argument's memory, and nothing written: no work."""
    if func._schema.is_mutable:
        return False
    known = {_address(t) for t in given}
    return all(_address(t) in known for t in made)


def _address(tensor: torch.Tensor) -> int:
    """Of its memory, or of the storage itself where that has none: a fake tensor's."""
    return StorageWeakRef(tensor.untyped_storage()).cdata if _strided(tensor) else id(tensor)


def _strided(tensor: torch.Tensor) -> bool:
    return tensor.layout == torch.strided


def tensors_in(tree) -> list[torch.Tensor]:
    """Every tensor in nested tuples, lists and dicts."""
    if isinstance(tree, torch.Tensor):
        return [tree]
    if isinstance(tree, dict):
        tree = tree.values()
    elif not isinstance(tree, (tuple, list)):
        return []
    return [tensor for part in tree for tensor in tensors_in(part)]
