"""Element types, named as the IR prints them, and what planning and codegen ask of them."""
from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch


@dataclass(frozen=True, slots=True)
class DType:
    """One element type. `bits` is the storage size of one element; bool is stored in 8 bits, as
    torch does."""

    name: str
    kind: str  # "float", "int", "uint" or "bool"
    bits: int

    @property
    def bytes(self) -> int:
        """Size of an element."""
        return self.bits // 8

    @property
    def is_float(self) -> bool:
        """Whether it is a floating type."""
        return self.kind == "float"

    @property
    def is_integral(self) -> bool:
        """Integers of either sign; bool is not one of them."""
        return self.kind in ("int", "uint")

    @property
    def is_low_precision(self) -> bool:
        """Stored in 16 or 8 bits, computed in float32."""
        return self.kind == "float" and self.bits < 32

    @property
    def is_float8(self) -> bool:
        """Converted and moved only: ATen has no arithmetic on them."""
        return self.kind == "float" and self.bits == 8

    def __repr__(self) -> str:
        return self.name


f64 = DType("f64", "float", 64)
f32 = DType("f32", "float", 32)
f16 = DType("f16", "float", 16)
bf16 = DType("bf16", "float", 16)
f8e4m3 = DType("f8e4m3", "float", 8)  # torch.float8_e4m3fn: no infinities, one NaN of each sign
f8e5m2 = DType("f8e5m2", "float", 8)
i64 = DType("i64", "int", 64)
i32 = DType("i32", "int", 32)
i16 = DType("i16", "int", 16)
i8 = DType("i8", "int", 8)
u8 = DType("u8", "uint", 8)
b1 = DType("b1", "bool", 8)

ALL = (f64, f32, f16, bf16, f8e4m3, f8e5m2, i64, i32, i16, i8, u8, b1)
BY_NAME = {d.name: d for d in ALL}
_TORCH = {
    f64: torch.float64, f32: torch.float32, f16: torch.float16, bf16: torch.bfloat16,
    f8e4m3: torch.float8_e4m3fn, f8e5m2: torch.float8_e5m2,
    i64: torch.int64, i32: torch.int32, i16: torch.int16, i8: torch.int8, u8: torch.uint8,
    b1: torch.bool,
}  # fmt: skip
_FROM_TORCH = {t: d for d, t in _TORCH.items()}


def to_torch(dtype: DType) -> torch.dtype:
    """The torch.dtype of this name."""
    return getattr(torch, dtype.name) if dtype.kind == "opaque" else _TORCH[dtype]


def torch_name(dtype: torch.dtype) -> str:
    """torch.float32 -> "float32" """
    return str(dtype).removeprefix("torch.")


def from_torch(dtype: torch.dtype) -> DType | None:
    """The IR's name of a torch dtype, or None for one that stays with ATen (complex, other
    float8)."""
    return _FROM_TORCH.get(dtype)


@cache
def compute(dtype: DType) -> DType:
    """The type in which arithmetic on `dtype` is done: float32 for 16-bit floats, as in ATen's
    kernels, and for what float8 is converted by."""
    return f32 if dtype.is_low_precision else dtype
