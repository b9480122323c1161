"""Convolutions of images with few channels (colours), as ones of many: the pixels of a window's row
lie side by side in memory, and become the channels.

    before: convolution x[n, 3, 224, 224], w[64, 3, 7, 7], steps (2, 2), padding (3, 3)
    after:  t[n, 224, 4*230] = x with its channels innermost, a fourth of zeros, and the padding of
            rows; v[64, 7, 32] alike
            convolution of t seen as [n, 28, 224, 112], 8 elements from one place to the next, and v
            as [64, 28, 7, 1], steps (2, 1), padding (3, 0)

TMA copies pieces of 16 bytes: pixels of three channels are none, but a row of a window is
(templates/gemm/hopper/images.py). The seen image overlaps itself; a library would copy it first.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from torchweld.core.options import Options
from torchweld.ir.affine import axis, constant
from torchweld.ir.build import BodyBuilder
from torchweld.ir.contraction import TENSOR_DTYPES
from torchweld.ir.nodes import Axis, Buffer, Comp, Extern, Graph, Node, Store, View
from torchweld.ir.views import dense_like
from torchweld.targets.target import Target
from torchweld.templates.conv.comp import Call, call_of, inside
from torchweld.templates.conv.own import own_s
from torchweld.templates.gemm.hopper.images import MOST_DIMENSIONS
from torchweld.templates.gemm.price import Prices

_LANES = 8  # elements of 16 bytes
_MOST = 8  # channels; more fill steps of the depth tap by tap
# Elements of a window, which the Triton kernel loads one by one, in a step of its depth. Where one
# step does, it is faster. H100, us, this and that: 3 x 3 x 3, 32 images of 224 x 224 to 64 channels
# 389, 197; 4 x 4 x 3, 16 of 256 x 256 in steps of two 64, 34; 7 x 7 x 3, 64 of 224 x 224 in steps
# of two 205, 460; 3 x 3 x 8, 32 of 128 x 128 133, 382.
_ONE_STEP = 64


def wide_windows(graph: Graph, table: Target, options: Options) -> Graph:
    """`graph` with such convolutions on a Hopper GPU."""
    if not options.fuse or options.numerics != "contract" or table.capability[:1] != (9,):
        return graph
    nodes: list[Node] = []
    buffers = dict(graph.buffers)
    for node in graph.nodes:
        call, more = call_of(node), {}
        wide = _seen_wide(node, call, graph, more) if _is_narrow(call, graph) else []
        if wide and _is_taken(node, wide, replace(graph, buffers={**buffers, **more}), table):
            nodes, buffers = [*nodes, *wide], {**buffers, **more}
        else:
            nodes.append(node)
    return replace(graph, nodes=tuple(nodes), buffers=buffers)


def _is_taken(node: Extern, wide: list[Node], graph: Graph, table: Target) -> bool:
    """Whether the convolution takes less time than the library's call: a library would copy the
    wide image."""
    return is_faster(own_s(wide, graph, table), Prices(graph, table).call_s(node))


def is_faster(own_s: float, library_s: float) -> bool:
    return own_s < library_s


def _is_narrow(call: Call | None, graph: Graph) -> bool:
    if call is None or call.transposed or call.groups != 1 or call.channels > _MOST:
        return False
    image, weight = (graph.buffers[v.buffer] for v in (call.image, call.weight))
    numbers = (*image.shape, *weight.shape, *weight.strides)
    plain = all(isinstance(n, int) for n in numbers) and image.dtype == weight.dtype
    plain &= _is_all(call.image, image) and _is_all(call.weight, weight)
    if not plain or image.dtype not in TENSOR_DTYPES or call.dilation[-1] != 1:
        return False
    outer = list(zip(image.shape[2:-1], call.stride))
    dimensions = len(image.shape) + sum(step > 1 for _, step in outer)
    fits = dimensions <= MOST_DIMENSIONS and all(n % step == 0 for n, step in outer)
    fills = call.channels * call.window[-1] >= _LANES
    return fits and fills and call.channels * prod(call.window) > _ONE_STEP


def _is_all(view: View, buffer: Buffer) -> bool:
    """Whether a view is its whole buffer; the strides of single elements mean nothing."""
    strides = zip(view.shape, view.strides, buffer.strides)
    return view.offset == 0 and view.shape == buffer.shape and all(
        n == 1 or a == b for n, a, b in strides
    )


def _seen_wide(node: Extern, call: Call, graph: Graph, buffers: dict[str, Buffer]) -> list[Node]:
    """The copies of image and weight, and the convolution; adds what they write to `buffers`."""
    made, pixel = graph.buffers[node.outputs[0]], _pixel(call.channels, call.stride[-1])
    step, window, places = call.stride[-1] * pixel, call.window[-1] * pixel, made.shape[-1]
    row = _rounded((places - 1) * step + window, max(pixel, _LANES)) // pixel
    image, weight = graph.buffers[call.image.buffer], graph.buffers[call.weight.buffer]
    ones = _copy(f"{node.name}_image", image, pixel, row, call.padding[-1], node)
    taps = _rounded(window, max(pixel, _LANES)) // pixel
    others = _copy(f"{node.name}_weight", weight, pixel, taps, 0, node)
    for copy, source, width in ((ones, image, row), (others, weight, taps)):
        shape = (source.shape[0], *source.shape[2:-1], width * pixel)
        buffers[copy.writes[0]] = dense_like(source, copy.writes[0], shape)
    wide, narrow = buffers[ones.writes[0]], buffers[others.writes[0]]
    seen = View(wide.name, (wide.shape[0], window, *wide.shape[1:-1], places),
                (wide.strides[0], 1, *wide.strides[1:-1], step))  # fmt: skip
    turned = View(narrow.name, (narrow.shape[0], window, *narrow.shape[1:-1], 1),
                  (narrow.strides[0], 1, *narrow.strides[1:-1], 1))  # fmt: skip
    geometry = ((*call.stride[:-1], 1), (*call.padding[:-1], 0), call.dilation)
    args = (seen, turned, call.bias, *geometry, False, node.args[7], 1)
    return [ones, others, replace(node, args=args)]


def _pixel(channels: int, step: int) -> int:
    """Elements of a pixel, so that places are multiples of 16 bytes apart."""
    return next(p for p in (1, 2, 4, 8) if p >= channels and p * step % _LANES == 0)


def _copy(name: str, source: Buffer, pixel: int, row: int, before: int, node: Extern) -> Comp:
    """t[n, .., w*pixel + c] = source[n, c, .., w - before], zero where there is no such element."""
    sides = [f"s{d}" for d in range(len(source.shape) - 3)]
    extents = {"n": source.shape[0], **dict(zip(sides, source.shape[2:])), "w": row, "c": pixel}
    n, w, c, *outer = map(axis, ("n", "w", "c", *sides))
    body, at = BodyBuilder(), w + constant(-before)
    guard = inside(body, (at, c), (source.shape[-1], source.shape[1]))
    value = body.load(source.name, (n, c, *outer, at), source.dtype, guard, 0.0)
    store = Store(f"{name}_wide", (n, *outer, w * pixel + c), value)
    axes = tuple(Axis(a, e) for a, e in extents.items())
    return Comp(name, axes, body.body, (store,), node.origins)


def _rounded(number: int, unit: int) -> int:
    return -(-number // unit) * unit
