"""What a call with a cache is given."""

from __future__ import annotations

from dataclasses import dataclass

import torch

MASK = "attention_mask"  # by its name in transformers: 1 where a position is no padding


@dataclass(frozen=True)
class Inputs:
    """Of a call: its tensors by name, that of the tokens first; everything else that it is given
    but the cache, and the name of that. `masked`: the cache's room has the padding mask."""

    tensors: dict[str, torch.Tensor]
    others: dict[str, object]
    cache_name: str
    cache: object
    masked: bool = False

    def key(self) -> tuple:
        """Equal for calls that differ in sizes and values alone."""
        each = [(name, t.dtype, t.device, t.dim()) for name, t in self.tensors.items()]
        return (*each, *self.others.items(), self.cache_name, type(self.cache), self.masked)

    def sizes(self) -> tuple:
        """`key` and the sizes."""
        each = [(name, t.dtype, t.device, t.shape) for name, t in self.tensors.items()]
        return (*each, *self.others.items(), self.cache_name, type(self.cache), self.masked)
