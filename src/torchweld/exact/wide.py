"""A model that names float32 itself (`timesteps.float()`), or makes tensors of the default dtype
(`torch.linspace`), run in float64 all the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from torchweld.exact.trees import map_tensors

_WIDE = {torch.float32: torch.float64, torch.complex64: torch.complex128}
_HALVES = (torch.float16, torch.bfloat16)
_CASTS = {torch.Tensor.float: torch.float32, torch.Tensor.half: torch.float16,
          torch.Tensor.bfloat16: torch.bfloat16, torch.Tensor.cfloat: torch.complex64}  # fmt: skip


def widened(call: Callable, halves: bool = False) -> Callable:
    """`call`, in which float32 is float64 where it is named or a default, and complex numbers of it
    likewise. `halves`: where a type of 16 bits is named, numbers are rounded to it and are float64
    from there on; else what follows is of 16 bits, and rounds wherever eager does."""

    def run(*args, **kwargs):
        with _default_float64(), _Widen(halves):
            return call(*args, **kwargs)

    return run


def with_epsilons(call: Callable) -> Callable:
    """`call`, in which a root mean square norm without an epsilon adds that of float32, as eager
    does for all types but float64: else the same call in float64 is of other numbers."""

    def run(*args, **kwargs):
        with _Epsilons():
            return call(*args, **kwargs)

    return run


class _Epsilons(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        func = _rms_norm if func in (F.rms_norm, torch.rms_norm) else func
        return func(*args, **(kwargs or {}))


def _rms_norm(input, normalized_shape, weight=None, eps=None):
    eps = torch.finfo(torch.float32).eps if eps is None else eps
    return F.rms_norm(input, normalized_shape, weight, eps)


class _Widen(TorchFunctionMode):
    def __init__(self, halves: bool) -> None:
        super().__init__()
        self._halves = halves

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func in _CASTS:
            func, args = torch.Tensor.to, (args[0], _CASTS[func])
        kwargs = kwargs or {}
        named = {name: _wide(value) for name, value in kwargs.items()}
        result = func(*map(_wide, args), **named)
        if self._halves and any(map(_is_half, (*args, *kwargs.values()))):
            return map_tensors(lambda t: t.double() if t.dtype in _HALVES else t, result)
        return result


def _wide(value):
    return _WIDE.get(value, value) if isinstance(value, torch.dtype) else value


def _is_half(value) -> bool:
    return isinstance(value, torch.dtype) and value in _HALVES


@contextmanager
def _default_float64() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
