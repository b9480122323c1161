"""A model that names float32 itself (`timesteps.float()`), run in float64 all the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch.overrides import TorchFunctionMode

_CASTS = (torch.Tensor.float, torch.Tensor.half, torch.Tensor.bfloat16)


def widened(call: Callable) -> Callable:
    """`call`, in which every floating dtype that is named or a default is float64."""

    def run(*args, **kwargs):
        with _default_float64(), _Widen():
            return call(*args, **kwargs)

    return run


class _Widen(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        func = torch.Tensor.double if func in _CASTS else func
        named = {name: _wide(value) for name, value in (kwargs or {}).items()}
        return func(*map(_wide, args), **named)


def _wide(value):
    if not isinstance(value, torch.dtype):
        return value
    if value.is_complex:
        return torch.complex128
    return torch.float64 if value.is_floating_point else value


@contextmanager
def _default_float64() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
