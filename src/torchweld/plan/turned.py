"""Transposed convolutions as convolutions, whose window is turned around.

    y = transposed convolution x[n, c, h, w], w[c, o, 4, 4], steps of 2, padding 1
    v[(r, s, o), c, i, j] = w[c, o, r + 2*(1-i), s + 2*(1-j)]
    t = convolution x, v, padding 1:  t[n, (r, s, o), a, b]  and  y[n, o, 2*a+r-1, 2*b+s-1] = t

What a step has places for are `phases`, which see the same pixels by other elements of the window:
they are channels of one convolution, side by side. A window that is no multiple of the step is
filled up with zeros.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod

from torchweld.ir.affine import Affine, axis, constant
from torchweld.ir.build import BodyBuilder
from torchweld.ir.nodes import Axis, Buffer, Comp, Extern, Store
from torchweld.layout.channels import innermost
from torchweld.templates.conv.comp import Call, on_buffer


@dataclass(frozen=True, slots=True)
class Side:
    """`places` of the convolution, each of which has a result of each of `phases`: at
    `phases * place + phase - cut` of `size`."""

    places: int
    phases: int
    cut: int
    size: int
    taps: int
    padding: int

    def result(self, place: Affine, phase: Affine) -> Affine:
        return place * self.phases + phase + -self.cut

    @property
    def last(self) -> int:
        return self.phases * self.places - 1 - self.cut


@dataclass(frozen=True, slots=True)
class Turned:
    """The copy of the weight, the convolution, and what they write. `groups` and `results`: of
    each phase."""

    copy: Comp
    convolution: Extern
    weight: Buffer
    made: Buffer
    sides: tuple[Side, ...]
    groups: int
    results: int

    @property
    def phases(self) -> int:
        return prod(s.phases for s in self.sides)


def turned(node: Extern, call: Call, buffers: Mapping[str, Buffer]) -> Turned | None:
    """None where sizes are not known, and of windows that no padding makes."""
    result = buffers[node.outputs[0]]
    if not call.transposed or not all(isinstance(n, int) for n in call.image.shape):
        return None
    sides = tuple(_side(call, d, result.shape[2 + d]) for d in range(len(call.window)))
    phases = prod(s.phases for s in sides if s)
    if None in sides or (call.bias is not None and phases > 1):
        return None
    channels = call.groups * phases * call.results
    source, taps = buffers[call.weight.buffer], [s.taps for s in sides]
    weight = replace(source, name=f"{node.name}_turned", frozen=False,
                     shape=(channels, call.channels, *taps))  # fmt: skip
    made = replace(result, name=f"{node.name}_phases", frozen=False,
                   shape=(result.shape[0], channels, *(s.places for s in sides)))  # fmt: skip
    weight, made = innermost(weight), innermost(made)
    made = result if phases == 1 else made
    copy = _copy(node, call, weight, sides, buffers)
    if copy is None:
        return None
    every, ones = tuple(s.padding for s in sides), (1,) * len(sides)
    dilation = tuple(d if s.phases == 1 else 1 for s, d in zip(sides, call.dilation))
    args = (call.image, weight.view, call.bias, ones, every, dilation, False,
            (0,) * len(sides), call.groups)  # fmt: skip
    convolution = replace(node, args=args, outputs=(made.name,))
    return Turned(copy, convolution, weight, made, sides, call.groups, call.results)


def _side(call: Call, d: int, size: int) -> Side | None:
    """None where the convolution would need a negative padding, or does not reach all results."""
    step, window, padding, dilation = (
        sizes[d] for sizes in (call.stride, call.window, call.padding, call.dilation)
    )
    if step > 1 and dilation > 1:
        return None
    taps = -(-window // step)
    around = dilation * (taps - 1) - padding // step
    places = call.image.shape[2 + d] + 2 * around - dilation * (taps - 1)
    found = Side(places, step, padding % step, size, taps, around)
    exact = step > 1 or places == size
    return found if around >= 0 and places > 0 and exact and found.last >= size - 1 else None


def _copy(
    node: Extern, call: Call, weight: Buffer, sides: tuple[Side, ...], buffers: Mapping[str, Buffer]
) -> Comp | None:
    """v[(g, r.., o), c, i..] = w[(g, c), o, r + step*(taps-1-i)..], zero beyond its end; None of a
    window on a buffer that goes over several of its dimensions at once."""
    phases, taps = [f"r{d}" for d in range(len(sides))], [f"i{d}" for d in range(len(sides))]
    extents = {"g": call.groups, **{p: s.phases for p, s in zip(phases, sides)},
               "o": call.results, "c": call.channels,
               **{i: s.taps for i, s in zip(taps, sides)}}  # fmt: skip
    at = {a: constant(0) if size == 1 else axis(a) for a, size in extents.items()}
    body, guard, elements, channel = BodyBuilder(), None, [], at["g"]
    for r, i, side, window in zip(phases, taps, sides, call.window):
        channel = channel * side.phases + at[r]
        elements.append(at[r] + at[i] * -side.phases + side.phases * (side.taps - 1))
        if side.phases * side.taps > window:
            inside = body.op("lt", body.index(elements[-1]), body.index(constant(window)))
            guard = inside if guard is None else body.op("bit_and", guard, inside)
    factors = (at["g"] * call.channels + at["c"], at["o"])
    place = on_buffer(call.weight, buffers, (*factors, *elements))
    if place is None:
        return None
    value = body.load(call.weight.buffer, place, weight.dtype, guard, 0.0)
    made = (channel * call.results + at["o"], at["c"], *map(at.get, taps))
    store = Store(weight.name, made, value)
    axes = tuple(Axis(a, size) for a, size in extents.items() if size != 1)
    return Comp(weight.name, axes, body.body, (store,), node.origins)
