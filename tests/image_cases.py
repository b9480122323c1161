"""Convolutions as Comps, with what follows them, for tests of products over images."""

from __future__ import annotations

from dataclasses import replace

from torchweld.core import dtypes
from torchweld.ir.affine import axis
from torchweld.ir.build import BodyBuilder
from torchweld.ir.nodes import Axis, Buffer, Comp, Extern, Store
from torchweld.plan.merge import Rules, merge
from torchweld.plan.transposed import over_phases
from torchweld.plan.turned import turned
from torchweld.templates.conv.comp import call_of, convolution_comp
from triton_cases import Case


def innermost(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of an image [n, c, ...] with its channels innermost."""
    strides, step = [0] * len(shape), 1
    for d in (1, *reversed(range(2, len(shape))), 0):
        strides[d], step = step, step * shape[d]
    return tuple(strides)


def call(
    batch: int, channels: int, sides: tuple[int, ...], results: int, window: tuple[int, ...],
    stride: int = 1, padding: int | tuple[int, ...] = 0, dilation: int = 1, groups: int = 1,
    dtype: str = "bf16", behind: int = 0,
) -> tuple[Extern, dict[str, Buffer]]:
    """A call of aten.convolution and its buffers: x, w and y. `behind`: other channels that x has
    before those that are convolved."""
    around = padding if isinstance(padding, tuple) else (padding,) * len(sides)
    made = tuple((n + 2 * p - dilation * (k - 1) - 1) // stride + 1
                 for n, k, p in zip(sides, window, around))  # fmt: skip
    shapes = {"x": (batch, behind + channels, *sides), "w": (results, channels // groups, *window),
              "y": (batch, results, *made)}  # fmt: skip
    kind = dtypes.BY_NAME[dtype]
    buffers = {n: Buffer(n, s, kind, innermost(s), "cuda:0", n == "w") for n, s in shapes.items()}
    stride, dilation = ((n,) * len(sides) for n in (stride, dilation))
    every = stride, around, dilation
    x = replace(buffers["x"].view, shape=(batch, channels, *sides), offset=behind)
    args = (x, buffers["w"].view, None, *every, False, (0,) * len(sides), groups)
    return Extern("convolution", "aten.convolution.default", args, (), ("y",)), buffers


def convolution(*sizes, **more) -> Case:
    node, buffers = call(*sizes, **more)
    return Case("convolution", convolution_comp(node, buffers), buffers)


def normalised(*sizes, **more) -> Case:
    """relu(y * scale + shift + residual), what y is rounded to too."""
    node, buffers = call(*sizes, **more)
    result, kind = buffers["y"], buffers["y"].dtype
    for name in ("scale", "shift"):
        buffers[name] = Buffer(name, result.shape[1:2], dtypes.f32, (1,), "cuda:0")
    for name in ("r", "z"):
        buffers[name] = Buffer(name, result.shape, kind, result.strides, "cuda:0")
    names = "nohwd"[: len(result.shape)]
    place, b = tuple(map(axis, names)), BodyBuilder()
    value = b.widen(b.load("y", place, kind))
    for operation, name in (("mul", "scale"), ("add", "shift")):
        value = b.op(operation, value, b.load(name, place[1:2], dtypes.f32))
    value = b.op("add", value, b.widen(b.load("r", place, kind)))
    value = b.op("maximum", value, b.const(0.0, dtypes.f32))
    axes = tuple(Axis(n, e) for n, e in zip(names, result.shape))
    store = Store("z", place, b.cast(value, kind))
    reader, comp = Comp("reader", axes, b.body, (store,)), convolution_comp(node, buffers)
    shapes = {n: b.shape for n, b in buffers.items()}
    both = merge(comp, reader, Rules(frozenset({"y"}), shapes))
    return Case("normalised", both, buffers)


def phased(
    batch: int, channels: int, sides: tuple[int, ...], results: int, window: int, groups: int = 1,
    padding: int = 1, dtype: str = "bf16",
) -> Case:
    """relu(y + b) of a transposed convolution in steps of two, with its phases as columns."""
    made = tuple((n - 1) * 2 - 2 * padding + window for n in sides)
    shapes = {"x": (batch, channels, *sides), "y": (batch, results, *made),
              "w": (channels, results // groups, *(window,) * len(sides))}  # fmt: skip
    kind = dtypes.BY_NAME[dtype]
    buffers = {n: Buffer(n, s, kind, innermost(s), "cuda:0") for n, s in shapes.items()}
    buffers["z"] = replace(buffers["y"], name="z")
    buffers["b"] = Buffer("b", (results,), kind, (1,), "cuda:0")
    every = ((n,) * len(sides) for n in (2, padding, 1))
    args = (buffers["x"].view, buffers["w"].view, None, *every, True, (0,) * len(sides), groups)
    node = Extern("transposed", "aten.convolution.default", args, (), ("y",))
    names, body = "nohwd"[: len(shapes["y"])], BodyBuilder()
    place = tuple(map(axis, names))
    y, b = (body.load(n, at, kind) for n, at in (("y", place), ("b", place[1:2])))
    total = body.op("add", body.widen(y), body.widen(b))
    value = body.cast(body.op("maximum", total, body.const(0.0, dtypes.f32)), kind)
    axes = tuple(Axis(n, e) for n, e in zip(names, shapes["y"]))
    reader = Comp("reader", axes, body.body, (Store("z", place, value),))
    found = turned(node, call_of(node), buffers)
    buffers |= {b.name: b for b in (found.weight, found.made)}
    rest = over_phases(reader, "y", found, buffers)
    comp = convolution_comp(found.convolution, buffers)
    merged = merge(comp, rest, Rules(shapes={n: b.shape for n, b in buffers.items()}))
    used = {*merged.reads, *merged.writes}
    return Case("phased", merged, {n: b for n, b in buffers.items() if n in used})
