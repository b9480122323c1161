"""Tensors without their memory: what a recorded call was given and made."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import torch

from torchweld.core.dtypes import torch_name


@dataclass(frozen=True)
class Meta:
    """A tensor argument or result, without its memory."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype

    def __str__(self) -> str:
        """float32[8, 128]"""
        return f"{torch_name(self.dtype)}{list(self.shape)}"


def meta_of(value):
    """Tensors in nested arguments become Metas; lists become tuples, to be hashable."""
    if isinstance(value, torch.Tensor):
        strides = value.stride() if value.layout == torch.strided else ()
        return Meta(tuple(value.shape), tuple(strides), value.dtype)
    if isinstance(value, (tuple, list)):
        return tuple(map(meta_of, value))
    return value


def as_tensors(tree, device: str = "meta"):
    """Metas as tensors, by default without memory."""
    if isinstance(tree, Meta):
        return torch.empty_strided(tree.shape, tree.strides, dtype=tree.dtype, device=device)
    if isinstance(tree, (tuple, list)):
        return tuple(as_tensors(part, device) for part in tree)
    if isinstance(tree, dict):
        return {name: as_tensors(value, device) for name, value in tree.items()}
    return tree


def metas_in(tree) -> list[Meta]:
    """Every one in nested tuples and dicts."""
    if isinstance(tree, Meta):
        return [tree]
    if isinstance(tree, dict):
        tree = tuple(tree.values())
    return [m for part in tree for m in metas_in(part)] if isinstance(tree, tuple) else []


def elements(metas: list[Meta]) -> float:
    """Of all together."""
    return float(sum(prod(m.shape) for m in metas))


def distinct_bytes(meta: Meta) -> int:
    """Of the elements that differ in address."""
    sizes = meta.shape if not meta.strides else [
        n if stride else min(n, 1) for n, stride in zip(meta.shape, meta.strides)]
    return prod(sizes) * meta.dtype.itemsize


def largest_dtype(metas: list[Meta]) -> str:
    """Of the largest floating one, of the largest if there is none, - of nothing."""
    floating = [m for m in metas if m.dtype.is_floating_point] or metas
    largest = max(floating, key=distinct_bytes, default=None)
    return torch_name(largest.dtype) if largest else "-"
