"""8-bit floats in generated code: bytes in memory and in registers, converted from and to float32
exactly as `to` does. The numbers of each format, and how conversions are called with them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import torch

from torchweld.core import dtypes
from torchweld.core.dtypes import DType
from torchweld.core.torch_private import without_modes


@dataclass(frozen=True, slots=True)
class Format:
    """`mantissa`: bits stored of it; `bias`: of the exponent; `limit`: the bits of the first
    float32 that is too large; `special`: the first code that is infinite or NaN."""

    mantissa: int
    bias: int
    limit: int
    special: int


FORMATS = {
    dtypes.f8e4m3: Format(3, 7, 0x43E80001, 0x7F),  # the next after 464
    dtypes.f8e5m2: Format(2, 15, 0x47700000, 0x7C),  # 61440
}


@cache
def top(dtype: DType) -> int:
    """The code of what is too large: of f8e4m3 torch 2.13 has the largest number, others NaN. Its
    kernels for CPUs and GPUs have one source."""
    return code(math.inf, dtype)


def code(value: float, dtype: DType) -> int:
    """The byte of a constant."""
    with without_modes():  # kernels may be generated while fake tensors are traced
        number = torch.tensor([value], dtype=torch.float32).to(dtypes.to_torch(dtype))
        return number.view(torch.uint8).item()


def widened(function: str, text: str, dtype: DType) -> str:
    """A call of the language's `function` from a byte to float32."""
    f = FORMATS[dtype]
    return f"{function}({text}, {f.mantissa}, {f.bias}, {f.special})"


def narrowed(function: str, text: str, dtype: DType) -> str:
    """A call of the language's `function` from float32 to a byte."""
    f = FORMATS[dtype]
    return f"{function}({text}, {f.mantissa}, {f.bias}, {f.limit:#x}, {top(dtype):#x})"
