"""Padding by reflection or replication, and nearest-neighbour upsampling: reads at computed
positions."""

from __future__ import annotations

from collections.abc import Callable

from torchweld.capture.lowering.call import Call
from torchweld.capture.lowering.expr import Expr
from torchweld.capture.lowering.registry import lowers
from torchweld.capture.views import Tensor
from torchweld.core import dtypes
from torchweld.ir.size import Size, divide


def _padded(call: Call, x: Tensor, pad, place: Callable[[Expr, Size], Expr]) -> Tensor:
    """`place(i, size)`: where in a dimension of `size` the position i (from -pad) reads."""
    before = {x.rank - 1 - k: pad[2 * k] for k in range(len(pad) // 2)}
    return _moved(
        call, x, {d: lambda at, size, n=n: place(at - n, size) for d, n in before.items()}
    )


def _moved(call: Call, x: Tensor, places: dict[int, Callable[[Expr, Size], Expr]]) -> Tensor:
    """x read along some dimensions at a function of the result's position."""
    aligned = [None if d in places else d for d in range(x.rank)]
    nest = call.nest(call.out.shape, extra=[(x, aligned)])
    at = [places[d](nest.position(d), x.shape[d]) if d in places else d for d in range(x.rank)]
    return call.finish(nest, nest.read(x, at))


@lowers(
    "aten.replication_pad1d.default",
    "aten.replication_pad2d.default",
    "aten.replication_pad3d.default",
)
def replication_pad(call: Call, x, pad):
    return _padded(call, x, pad, lambda i, size: i.maximum(0).minimum(size - 1))


@lowers(
    "aten.reflection_pad1d.default",
    "aten.reflection_pad2d.default",
    "aten.reflection_pad3d.default",
)
def reflection_pad(call: Call, x, pad):
    """|i| reflects at the first element, last - |last - |i|| at the last."""

    def place(i: Expr, size: Size) -> Expr:
        last = i.lift(size - 1)
        return last - (last - i.abs()).abs()

    return _padded(call, x, pad, place)


@lowers(
    "aten.upsample_nearest1d.default",
    "aten.upsample_nearest2d.default",
    "aten.upsample_nearest3d.default",
    "aten.upsample_nearest1d.vec",
    "aten.upsample_nearest2d.vec",
    "aten.upsample_nearest3d.vec",
)
def upsample_nearest(call: Call, x, *_):
    """floor(i * in / out), as integers where out is a multiple of in and as eager's float32
    otherwise."""
    shape = call.out.shape
    return _moved(call, x, {d: _nearest(shape[d], x.shape[d]) for d in range(2, x.rank)})


def _nearest(out: Size, size: Size) -> Callable[[Expr, Size], Expr]:
    factor = divide(out, size)
    if factor is not None:
        return lambda at, _: at.floor_div(factor)
    return lambda at, n: (
        (at.to(dtypes.f32) * (at.lift(n).to(dtypes.f32) / at.lift(out).to(dtypes.f32)))
        .to(dtypes.i64)
        .minimum(n - 1)
    )
