"""What a call asks of ATen: how many operations that do work, and the bytes that they read and
write."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from torchweld.runtime.torch_private import DispatchMode

_ALLOCATIONS = frozenset((
    "aten::empty", "aten::empty_like", "aten::empty_strided", "aten::empty_permuted",
    "aten::new_empty", "aten::new_empty_strided", "aten::set_", "aten::resize_",
))  # fmt: skip


@dataclass
class Traffic:
    """`operations`: ATen calls that are no views and touch a tensor; `bytes_moved`: the sizes of
    their tensor arguments and results, an expanded dimension counted once."""

    operations: int = 0
    bytes_moved: int = 0


class CountTraffic(DispatchMode):
    """`with CountTraffic() as counted:` counts the ATen calls inside into `counted.traffic`."""

    def __init__(self) -> None:
        super().__init__()
        self.traffic = Traffic()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        touched = tensors_in((args, kwargs)), tensors_in(result)
        if touched[1] and not is_view(func, *touched):
            self.traffic.operations += 1
            self.traffic.bytes_moved += sum(distinct_bytes(t) for side in touched for t in side)
        return result


def distinct_bytes(tensor: torch.Tensor) -> int:
    """Bytes of the elements that differ in address."""
    count = 1
    for size, stride in zip(tensor.shape, tensor.stride() if _strided(tensor) else tensor.shape):
        count *= size if stride else min(size, 1)
    return count * tensor.element_size()


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
    return tensor.untyped_storage().data_ptr() if _strided(tensor) else id(tensor)


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
