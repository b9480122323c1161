"""Library calls of our own, named by Extern targets: products and convolutions on weights packed
for oneDNN.

Each entry of LIBRARY makes the function of one Extern node; it keeps the packed weight, and packs
again when the weight's address or version says that it has changed.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from torchweld.runtime import torch_private
from torchweld.runtime.record import note


class Packed:
    """A weight in the library's layout, as long as the weight is what it was."""

    def __init__(self, pack: Callable[..., torch.Tensor], name: str, record) -> None:
        self._pack, self._name, self._record = pack, name, record
        self._state: tuple | None = None

    def __call__(self, weight: torch.Tensor, *details) -> torch.Tensor:
        key = (weight.data_ptr(), _version(weight), details)
        state = self._state
        if state is None or state[0] != key:
            packed = self._pack(weight, *details)
            if state is None:
                note(
                    self._record,
                    "packed",
                    self._name,
                    "weight kept in oneDNN's layout too",
                    weight.nbytes,
                    "bytes",
                )
            self._state = state = (key, packed)
        return state[1]


def _version(weight: torch.Tensor) -> int:
    """Inference tensors have no version, and cannot be changed in place outside inference mode."""
    return -1 if weight.is_inference() else weight._version


def _linear(name: str, record) -> Callable:
    """(x [..., k], weight [n, k], bias [n] or None, activation, algorithm or None) -> [..., n]"""
    pack = Packed(lambda w: torch_private.pack_linear_weight(w, None), name, record)

    def linear(x, weight, bias=None, activation="none", algorithm=None):
        return torch_private.packed_linear(x, pack(weight), bias, activation, [], algorithm)

    return linear


def _linear_binary(name: str, record) -> Callable:
    """(x [..., k], other [..., n], weight [n, k], bias [n] or None, operation) -> [..., n]"""
    pack = Packed(lambda w: torch_private.pack_linear_weight(w, None), name, record)

    def linear(x, other, weight, bias=None, operation="add"):
        return torch_private.packed_linear_binary(x, other, pack(weight), bias, operation)

    return linear


def _convolution(name: str, record) -> Callable:
    """(x, weight, bias or None, stride, padding, dilation, groups, activation, algorithm or None);
    x in any layout."""
    pack = Packed(torch_private.pack_convolution_weight, name, record)

    def convolution(
        x, weight, bias, stride, padding, dilation, groups, activation="none", algorithm=None
    ):
        packed = pack(
            weight, tuple(padding), tuple(stride), tuple(dilation), groups, tuple(x.shape)
        )
        return torch_private.packed_convolution(
            x, packed, bias, padding, stride, dilation, groups, activation, [], algorithm
        )

    return convolution


LIBRARY: dict[str, Callable[[str, object], Callable]] = {
    "torchweld.linear": _linear,
    "torchweld.linear_binary": _linear_binary,
    "torchweld.convolution": _convolution,
}
