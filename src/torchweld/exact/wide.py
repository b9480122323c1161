"""A model that names float32 itself (`timesteps.float()`), or makes tensors of the default dtype
(`torch.linspace`), run in float64 all the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

_WIDE = {torch.float32: torch.float64, torch.complex64: torch.complex128}
_HALVES = {torch.float16: torch.float64, torch.bfloat16: torch.float64}
_CASTS = {torch.Tensor.float: torch.float32, torch.Tensor.half: torch.float16,
          torch.Tensor.bfloat16: torch.bfloat16, torch.Tensor.cfloat: torch.complex64}  # fmt: skip


def widened(call: Callable, halves: bool = False) -> Callable:
    """`call`, in which float32 is float64 where it is named or a default, and complex numbers of it
    likewise; `halves`: types of 16 bits, too, which else round as they do in eager."""
    images = _WIDE | (_HALVES if halves else {})

    def run(*args, **kwargs):
        with _default_float64(), _Widen(images):
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
    """`images`: what dtypes become."""

    def __init__(self, images: Mapping[torch.dtype, torch.dtype]) -> None:
        super().__init__()
        self._images = images

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if _CASTS.get(func) in self._images:
            func, args = torch.Tensor.to, (args[0], _CASTS[func])
        named = {name: self._wide(value) for name, value in (kwargs or {}).items()}
        return func(*map(self._wide, args), **named)

    def _wide(self, value):
        return self._images.get(value, value) if isinstance(value, torch.dtype) else value


@contextmanager
def _default_float64() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
