"""Inputs that are read where they are, as long as they stay there: parameters."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType

import torch

_data_ptr = torch.Tensor.data_ptr


class Fixed:
    """The tensors at some positions of a call's inputs. `pointers`: their addresses. While they are
    the same objects, `native` (see native.py), if there is one, looks at all of them at once:
    `watched`."""

    def __init__(self, args: list, positions: Sequence[int], native: ModuleType | None) -> None:
        self.positions = tuple(positions)
        self.pointers = addresses(args, self.positions)
        self._native, self.watched = native, None
        if native is not None:
            self.tensors = tuple(args[p] for p in self.positions)
            self.watched = native.watch(self.tensors)

    def hold(self, args: list) -> bool:
        """Whether the tensors of this call are where these are."""
        native = self._native
        quick = (
            native is not None
            and native.are(args, self.positions, self.tensors)
            and native.unchanged(self.watched)
        )
        return quick or addresses(args, self.positions) == self.pointers


def addresses(args: list, positions: Sequence[int]) -> tuple[int, ...]:
    return tuple(map(_data_ptr, [args[p] for p in positions]))
