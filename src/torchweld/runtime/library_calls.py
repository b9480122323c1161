"""Library calls of our own, named by Extern targets: products and convolutions on weights packed
for oneDNN.

Each entry of LIBRARY makes the function of one Extern node; it keeps the packed weight, and packs
again when the weight's address or version says that it has changed.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from torchweld.kernels.library import LINEAR, LINEAR_PIECE
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
    """(x [m, k], weight [n, k], bias [n] or None, activation, algorithm or None) -> [m, n].

    A long float32 reduction is done in pieces, each added to the sum of those before it."""
    pack = Packed(_pack_pieces, name, record)

    def linear(x, weight, bias=None, activation="none", algorithm=None):
        pieces = pack(weight)
        if len(pieces) == 1:
            return torch_private.packed_linear(x, pieces[0][1], bias, activation, [], algorithm)
        (columns, packed), *rest = pieces
        total = torch_private.packed_linear(x[:, columns], packed, bias, "none", [], None)
        for columns, packed in rest:
            total = torch_private.packed_linear_add(x[:, columns], total, packed)
        return total

    return linear


def _pack_pieces(weight: torch.Tensor) -> list[tuple[slice, torch.Tensor]]:
    """(columns of x, packed weight) for each piece of the reduction."""
    width = weight.shape[1]
    step = LINEAR_PIECE if weight.dtype == torch.float32 else width
    columns = [slice(start, min(start + step, width)) for start in range(0, width, step)]
    return [(c, torch_private.pack_linear_weight(weight[:, c].contiguous())) for c in columns]


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
    LINEAR: _linear,
    "torchweld.convolution": _convolution,
}
