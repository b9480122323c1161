"""Library calls of our own, named by Extern targets.

Each entry of LIBRARY makes the function of one Extern node. One that packs keeps the packed weight,
and packs again when the weight's address or version says that it has changed (a write through
`weight.data` changes neither).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial

import torch

from torchweld.capture import recurrent, spectra
from torchweld.core import dtypes
from torchweld.ir.index_check import CHECK_INDEX, check_index
from torchweld.ir.nodes import Extern
from torchweld.ir.row_sums import ROW_SUMS
from torchweld.runtime import torch_private
from torchweld.runtime.externs import operator
from torchweld.runtime.odd_rows import mm_odd_rows
from torchweld.runtime.record import note
from torchweld.templates.conv.comp import UNEVEN
from torchweld.templates.library.calls import LINEAR, PACKED_LINEAR, linear_pieces
from torchweld.templates.library.odd_rows import ODD_ROWS


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


Piece = tuple[slice, torch.Tensor]  # columns of x, and those of the weight


def _linear(node: Extern, record) -> Callable:
    """A product on the weight as it is."""
    return _linear_with(_plain_pieces)


def _packed_linear(node: Extern, record) -> Callable:
    """A product on a copy of the weight in oneDNN's layout."""
    return _linear_with(Packed(_pack_pieces, node.name, record))


def _linear_with(pieces_of: Callable[[torch.Tensor], Iterable[Piece]]) -> Callable:
    """(x [m, k], weight [n, k], bias [n] or None, activation, algorithm or None) -> [m, n].

    A long float32 reduction is done in pieces, each added to the sum of those before it."""

    def linear(x, weight, bias=None, activation="none", algorithm=None):
        pieces = iter(pieces_of(weight))
        columns, part = next(pieces)
        if len(_columns(weight)) == 1:
            return torch_private.onednn_linear(x, part, bias, activation, algorithm)
        total = torch_private.onednn_linear(x[:, columns], part, bias, "none", None)
        del part  # before the next is copied
        for columns, part in pieces:
            total = torch_private.onednn_linear_add(x[:, columns], total, part)
            del part
        return total

    return linear


def _plain_pieces(weight: torch.Tensor) -> Iterator[Piece]:
    """oneDNN has no fast kernel for a weight with gaps between its rows: such pieces are copied,
    one at a time."""
    columns = _columns(weight)
    gaps = len(columns) > 1 and weight.stride(1) == 1
    return ((c, weight[:, c].contiguous() if gaps else weight[:, c]) for c in columns)


def _pack_pieces(weight: torch.Tensor) -> list[Piece]:
    return [
        (c, torch_private.pack_linear_weight(weight[:, c].contiguous())) for c in _columns(weight)
    ]


def _columns(weight: torch.Tensor) -> list[slice]:
    return linear_pieces(weight.shape[1], dtypes.from_torch(weight.dtype))


def _row_sum(node: Extern, record) -> Callable:
    return ROW_SUMS[node.target]


_CALLS = recurrent.CALLS | spectra.CALLS


def _of_tensors(node: Extern, record) -> Callable:
    return _CALLS[node.target]


def _check_index(node: Extern, record) -> Callable:
    """(outside [] bool, lowest, extent) -> None; raises IndexOutOfRange."""
    return partial(check_index, node)


def _uneven_convolution(node: Extern, record) -> Callable:
    """aten.convolution with two numbers for each side of the padding. Only where no kernel of ours
    was made of it after all (templates/conv/comp.py)."""

    def call(image, weight, bias, stride, padding, dilation, *rest):
        pairs = [padding[k : k + 2] for k in range(0, len(padding), 2)]
        image = torch.constant_pad_nd(image, [n for pair in reversed(pairs) for n in pair])
        none = [0] * len(pairs)
        return torch.convolution(image, weight, bias, stride, none, dilation, *rest)

    return call


def _as_strided(node: Extern, record) -> Callable:
    """Offsets count from the tensor, not from the arena that it may be a part of."""

    def call(x, size, stride, offset=None):
        return x.as_strided(size, stride, x.storage_offset() + (offset or 0)).clone()

    return call


def _as_strided_scatter(node: Extern, record) -> Callable:
    """As above; ATen's own also copies the whole arena."""

    def call(x, part, size, stride, offset=None):
        result = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device).copy_(x)
        result.as_strided(size, stride, offset or 0).copy_(part)
        return result

    return call


LIBRARY: dict[str, Callable[[Extern, object], Callable]] = {
    CHECK_INDEX: _check_index,
    **{name: _row_sum for name in ROW_SUMS},
    **{name: _of_tensors for name in _CALLS},
    LINEAR: _linear,
    PACKED_LINEAR: _packed_linear,
    ODD_ROWS: mm_odd_rows,
    UNEVEN: _uneven_convolution,
    "aten.as_strided_copy.default": _as_strided,
    "aten.as_strided_scatter.default": _as_strided_scatter,
}


def called(node: Extern, record) -> Callable:
    """The function of an Extern node."""
    factory = LIBRARY.get(node.target)
    if factory is not None:
        return factory(node, record)
    plain = operator(node.target)
    return _without_garbage(plain) if _may_make_garbage(node) else plain


def _may_make_garbage(node: Extern) -> bool:
    """Whether it is a call for the gradients of a dilated convolution of images in groups."""
    if node.target != "aten.convolution_backward.default":
        return False
    dilation, groups = node.args[6], node.args[9]
    return groups != 1 and len(dilation) == 2 and 1 not in dilation


def _without_garbage(plain: Callable) -> Callable:
    """oneDNN (torch 2.13, a processor with AVX-512) leaves memory that nobody wrote in a weight's
    gradient in bfloat16, where the image has channels last and the result its size. So it does to
    eager, for such an image."""

    def call(grad, image, weight, *details):
        *how, (of_image, of_weight, of_bias) = details
        wrong = image.dtype == torch.bfloat16 and image.device.type == "cpu"
        if not (wrong and of_weight) or image.is_contiguous():
            return plain(grad, image, weight, *details)
        first, _, bias = plain(grad, image, weight, *how, [of_image, False, of_bias])
        _, second, _ = plain(grad, image.contiguous(), weight, *how, [False, True, False])
        return first, second, bias

    return call
