"""Channels-last memory for what surrounds convolutions.

cuDNN's tensor-core kernels and oneDNN's 16-bit kernels read and write images with the channels
innermost; given them otherwise, each call converts its input and its result. ResNet-50 in bfloat16
on a CPU, one thread: eager 127 ms, with channels last 90 ms.

The layout of a temporary is free: kernels take any strides, and a call's result follows its input.
So the temporaries between convolutions change their strides, those of the pointwise operations and
pools among them too; an image that the caller gives is copied once. What the caller gets keeps its
layout. In float32 on a CPU nothing changes: with channels last oneDNN adds up a 3 x 3 convolution
of 512 channels in one chain, with 5 times the error of eager; `convolutions.py` has its own.

cuDNN's calls on an H100 with channels last, in times of those without (float32 by TF32, bfloat16):

    64 -> 128 channels, 3 x 3, 32 images of 64 x 64       0.47  0.43
    depthwise, 64 channels, 3 x 3, 112 x 112              0.34  0.22
    128 -> 128 channels in 32 groups, 56 x 56             0.51  0.47
    transposed, 64 -> 64 channels, stride 2, 64 x 64      0.48  0.37
    volumes, 64 -> 64 channels, 3 x 3 x 3, 8 x 28 x 28    0.81  0.65
    volumes, transposed, 3 -> 16 channels, stride 2       0.72  0.08
    64 -> 3 channels, 3 x 3, 256 x 256                    6.1   0.59
    240 -> 60 -> 240 channels, 1 x 1, 3 groups, 28 x 28   1.4
    60 -> 120 channels, 3 x 3, 5 groups, steps of two           1.7
    volumes, 16 -> 32 channels, 3 x 3 x 3, 4 groups       1.2
    one-dimensional, 64 -> 128 channels, windows of 3     2.2   1.6

One-dimensional ones in 16 bits are images of one row where that is faster (`one_row.py`); others
gain on Hopper where they are kernels of our own. Those that lose stay as they are, and so do
float32 ones whose factors would lose more bits on their way to TF32 in this layout, or that cuDNN
would not make by TF32 there (`precision.py`). The one in three groups loses in bfloat16, too: cuDNN
converts layouts for 768 us of a training step, without 293. In inference those in 16 bits are
products of our own. Volumes whose channels are convolved alone are ATen's kernels, which want
eager's layout, or pointwise work in any (`passes/depthwise.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, replace
from math import inf, prod

import torch

from torchweld.core import dtypes
from torchweld.core.dtypes import DType
from torchweld.ir.affine import Affine, axis, constant
from torchweld.ir.build import BodyBuilder
from torchweld.ir.contraction import TENSOR_DTYPES
from torchweld.ir.nodes import (
    Arg,
    Axis,
    Buffer,
    Comp,
    Extern,
    Graph,
    IndexMap,
    Load,
    Node,
    Store,
    View,
    views,
)
from torchweld.ir.size import Size, hint, product
from torchweld.ir.views import same_layout
from torchweld.layout.coarse import coarsened
from torchweld.layout.precision import is_exact, loses_precision
from torchweld.rewrite.flow import fixed_buffers, mutated_buffers
from torchweld.targets.target import Target
from torchweld.templates.conv.comp import Call, call_of
from torchweld.templates.conv.depthwise import is_filter, is_pointwise
from torchweld.templates.conv.own import is_permuted, joined_groups, own_s
from torchweld.templates.gemm.price import Prices, has_grouped_kernels

_IMAGES = (3, 4, 5)  # ranks: batch, channels, one side to three
_FEW = 8  # channels
_LARGE_WEIGHT = 1 << 18  # elements


@dataclass(frozen=True, slots=True)
class _Images:
    """Which arguments and results of a call are images. Results follow the layout of the first
    argument among them."""

    args: tuple[int, ...]
    results: tuple[int, ...] = (0,)


_CONVOLUTIONS = {  # position of the weight
    "aten.convolution.default": 1,
    "aten.convolution_backward.default": 2,
}
_CALLS: Mapping[str, _Images] = {
    "aten.convolution.default": _Images((0,)),
    "aten.convolution_backward.default": _Images((0, 1)),
    "aten.max_pool2d_with_indices.default": _Images((0,), (0, 1)),
    "aten.max_pool2d_with_indices_backward.default": _Images((1, 0, 7)),
    "aten.avg_pool2d.default": _Images((0,)),
    "aten.avg_pool2d_backward.default": _Images((1, 0)),
    "aten._adaptive_avg_pool2d.default": _Images((0,)),
    "aten._adaptive_avg_pool2d_backward.default": _Images((1, 0)),
    "aten.upsample_bilinear2d.default": _Images((0,)),
    "aten.upsample_bilinear2d.vec": _Images((0,)),
    "aten.max_pool3d_with_indices.default": _Images((0,), (0, 1)),
    "aten.avg_pool3d.default": _Images((0,)),
}
_Calls = Mapping[str, _Images]  # by the names of the nodes that read images either way


def channels_last(
    graph: Graph, table: Target, loose_outputs: Iterable[int] = frozenset()
) -> Graph:
    """`graph` with the channels of images innermost where its convolutions gain by it.
    `loose_outputs`: positions of outputs that may have any strides, if they are numbers."""
    trains = bool(frozenset(loose_outputs))
    reading = (n for n in graph.nodes if _reads_images(n, graph, table, trains))
    calls = {n.name: _CALLS[n.target] for n in reading}
    if not _gains(calls, graph, table, trains):
        return graph
    graph, loose = coarsened(graph, _images_read(calls, graph, table)), frozenset(loose_outputs)
    chosen = _chosen(graph, calls, loose, table)
    if table.kind == "cuda":
        graph = _with_returned_apart(graph, calls, loose, chosen)
        chosen = _chosen(graph, calls, loose, table)
    return _laid_out(graph, calls, chosen)


# -- who gains --


def _reads_images(node: Node, graph: Graph, table: Target, trains: bool) -> bool:
    """Whether it is a call that may be given channels last. On a CPU those that lose are given them
    too where others win: the copies would cost more. `trains`: the backward reads the images that
    are saved as they are, so its precision counts, too."""
    if not isinstance(node, Extern) or node.target not in _CALLS:
        return False
    if node.target not in _CONVOLUTIONS:
        return True
    weight = node.args[_CONVOLUTIONS[node.target]]
    if table.kind == "cpu":
        return len(weight.shape) == 4
    if is_filter(call_of(node), graph.buffers):
        return False
    if _is_depthwise_volume(node):
        return is_pointwise(call_of(node), graph.buffers)
    dtype = graph.buffers[weight.buffer].dtype
    if len(weight.shape) == 3:
        return not trains and is_own_row(node, graph, table)
    if not trains and is_permuted(call_of(node)) and not _are_own_groups(node, graph, table):
        return False
    asked = (node, *([_backward_of(node, graph)] if trains else []))
    if not _suits_cudnn(node, weight, dtype, graph):
        return False
    if dtype != dtypes.f32:
        return True
    slow = not trains and _is_slow_if_exact(node) and is_exact(_given_last(node), graph)
    return not slow and not any(loses_precision(n, _given_last(n), graph) for n in asked)


def _gains(calls: _Calls, graph: Graph, table: Target, trains: bool) -> bool:
    """Whether more of the arithmetic of convolutions is in such as are faster so than in such as
    are slower."""
    work = 0
    for node in graph.nodes:
        if isinstance(node, Extern) and node.target in _CONVOLUTIONS:
            gain = _gain(node, node.name in calls, graph, table, trains)
            work += gain * _work(node, graph)
    return work > 0


def _gain(node: Extern, takes: bool, graph: Graph, table: Target, trains: bool) -> int:
    """1: it is faster so; 0: as fast; -1: slower. `takes`: it may be given channels last."""
    weight = node.args[_CONVOLUTIONS[node.target]]
    dtype, groups = graph.buffers[weight.buffer].dtype, node.args[_groups_position(node)]
    if table.kind == "cuda":
        if is_filter(call_of(node), graph.buffers):
            return 0
        pixels = product(weight.shape[2:]) == 1
        if dtype == dtypes.f32 and groups == 1 and _are_alone(node):
            return -1  # H100, rows of words, 6 x 1 x 17 x 68 in windows of 5 x 68, us: 170, 17
        own = node.target == "aten.convolution.default" and not trains
        if takes and _is_depthwise_volume(node):
            return 0  # pointwise work in either layout
        if takes and pixels and (groups == 1) != dtype.is_low_precision:
            return 0 if groups == 1 or own else -1  # products of matrices in either layout
        return 1 if takes and not (pixels and groups != 1) else -1
    alone = len(weight.shape) == 4 and (groups == 1 or weight.shape[1] == 1)
    faster = alone and dtype.is_low_precision and torch.backends.mkldnn.is_available()
    return 1 if takes and faster else -1


def is_own_row(node: Extern, graph: Graph, table: Target) -> bool:
    """Whether a one-dimensional convolution will be a kernel of our own (gemm/hopper/images.py):
    long windows in groups always, of which the library is slower than its price."""
    call = call_of(node)
    if call is None or call.transposed:
        return False
    seconds = _own_last_s(node, call, graph, table)
    apart = call.groups > 1 and not has_grouped_kernels(call)
    return seconds < (inf if apart else Prices(graph, table).call_s(node))


def _are_own_groups(node: Extern, graph: Graph, table: Target) -> bool:
    """Whether a convolution in groups will be one, maybe with some of them joined."""
    call = call_of(node)
    counts = dict.fromkeys((1, joined_groups(call)))
    return any(_own_last_s(node, call, graph, table, n) < inf for n in counts)


def _own_last_s(node: Extern, call: Call, graph: Graph, table: Target, count: int = 1) -> float:
    """Seconds of our kernel for it, once all lies channels last, with `count` groups as one;
    infinite where there is none."""
    known = all(isinstance(n, int) for n in (*call.image.shape, *call.weight.shape))
    kinds = {graph.buffers[v.buffer].dtype for v in (call.image, call.weight)}
    if table.capability[:1] != (9,) or not known or len(kinds) != 1 or not kinds <= TENSOR_DTYPES:
        return inf
    rows, channels, *window = call.weight.shape
    shapes = call.image.shape, (rows, count * channels, *window)
    images = [replace(graph.buffers[v.buffer], name=f"{v.buffer}_last{k}", shape=shape)
              for k, (v, shape) in enumerate(zip((call.image, call.weight), shapes))]  # fmt: skip
    made = innermost(graph.buffers[node.outputs[0]])
    buffers = {b.name: b for b in (*map(innermost, images), made)}
    views = (buffers[b.name].view for b in images)
    seen = replace(node, args=(*views, None, *node.args[3:8], call.groups // count))
    return own_s([seen], replace(graph, buffers={**graph.buffers, **buffers}), table)


def _is_depthwise_volume(node: Extern) -> bool:
    """Whether it convolves each channel of volumes alone. As calls, these are ATen's own kernels in
    eager's layout; with channels last they would be cuDNN's, which has none for single channels."""
    weight, groups = node.args[_CONVOLUTIONS[node.target]], node.args[_groups_position(node)]
    return len(weight.shape) == 5 and groups != 1 and _are_alone(node)


def _are_alone(node: Extern) -> bool:
    """Whether a group of a convolution reads one channel."""
    weight, at = node.args[_CONVOLUTIONS[node.target]], _groups_position(node)
    groups, transposed = node.args[at], node.args[at - 2]
    return weight.shape[0] == groups if transposed else weight.shape[1] == 1


def _suits_cudnn(node: Extern, weight: View, dtype: DType, graph: Graph) -> bool:
    """Whether cuDNN has kernels: of volumes, of several channels; in float32, by TF32 only, which
    needs several channels of the result."""
    if len(weight.shape) not in _IMAGES:
        return False
    groups, transposed = node.args[_groups_position(node)], node.args[_groups_position(node) - 2]
    given, made = weight.shape[1] * groups, weight.shape[0]
    if transposed:
        given, made = weight.shape[0], weight.shape[1] * groups
    given, made = (hint(n, graph.hints) for n in (given, made))
    if len(weight.shape) == 5 and not transposed and given < _FEW:
        return False
    by_tf32 = dtype == dtypes.f32 and torch.backends.cudnn.allow_tf32 and made >= _FEW
    return dtype.is_low_precision or by_tf32


def _given_last(node: Extern) -> Extern:
    """A convolution of images with channels last."""
    args = list(node.args)
    for k in _CALLS[node.target].args:
        args[k] = replace(args[k], strides=_channels_last_strides(args[k].shape))
    return replace(node, args=tuple(args))


def _is_slow_if_exact(node: Extern) -> bool:
    """Whether cuDNN has no good kernels for it with channels last but for tensor cores: it turns
    images to its own layout and back (H200, transposed volumes in groups, 2.6 ms in eager's layout,
    3.1 so)."""
    call = call_of(node)
    return call is not None and call.channels > 1 and prod(call.window) > 1


def _backward_of(node: Extern, graph: Graph) -> Extern:
    """The gradients of a convolution's image and weight, for a gradient that lies as eager's."""
    image, weight, _, *geometry = node.args
    gradient = graph.buffers[node.outputs[0]].view
    args = (gradient, image, weight, None, *geometry, (True, True, False))
    return replace(node, target="aten.convolution_backward.default", args=args)


def _groups_position(node: Extern) -> int:
    return 8 if node.target == "aten.convolution.default" else 9


def _work(node: Extern, graph: Graph) -> int:
    """Multiply-adds, but for the stride of a transposed convolution."""
    grad_or_input, weight = node.args[0], node.args[_CONVOLUTIONS[node.target]]
    is_forward = node.target == "aten.convolution.default"
    image = graph.buffers[node.outputs[0]] if is_forward else grad_or_input
    pixels = (image.shape[0], *image.shape[2:])
    return hint(product((*pixels, *weight.shape)), graph.hints)


# -- which buffers --


def _images_read(
    calls: _Calls, graph: Graph, table: Target
) -> Iterator[tuple[str, tuple[Size, ...]]]:
    """Images that calls read in another shape than kernels write them in (a norm of groups of
    channels). On a CPU, only those with a batch of one: there such a norm is slow where channels
    are innermost, and 16-bit convolutions gain less."""
    for node in (n for n in graph.nodes if n.name in calls):
        images = [node.args[k] for k in calls[node.name].args if k < len(node.args)]
        for view in (v for v in images if isinstance(v, View) and v.offset == 0):
            alone = view.shape == (1, *graph.buffers[view.buffer].shape)
            if alone or table.kind == "cuda":
                yield view.buffer, view.shape


def _free_buffers(
    graph: Graph, calls: _Calls, loose: frozenset[int], table: Target
) -> frozenset[str]:
    """Images whose layout nobody outside sees, and that every call takes either way; on a GPU some
    channels of one, too: a library copies them in any layout, ours do not."""
    held, windows = fixed_buffers(graph, loose), views(graph.outputs)
    for node in graph.nodes:
        if isinstance(node, Extern):
            images = set(_image_names(node, calls))
            held.update({*node.reads, *node.writes} - images, node.mutates)
            windows += views((*node.args, *(a for _, a in node.kwargs)))
    parts = [v for v in windows if not is_whole(v, graph)]
    held.update(v.buffer for v in parts if table.kind != "cuda" or not _is_slice(v, graph))
    free = {n for n, b in graph.buffers.items() if len(b.shape) in _IMAGES} - held
    for node in graph.nodes:
        if node.name in calls and not _follows(node, calls, graph, free):
            free.difference_update(o for o in node.outputs if o)
    return frozenset(free)


def _follows(node: Extern, calls: _Calls, graph: Graph, free: Set[str]) -> bool:
    """Whether the image that the results follow has channels last or can be brought there. Of a
    gradient that is a part of another (of a concatenation's), that stays as it is: on a CPU, the
    library's results then follow the convolution's image, and the runtime would copy them back."""
    leader, *others = (node.args[k] for k in calls[node.name].args)
    is_gradient = node.target == "aten.convolution_backward.default"
    on_cpu = graph.buffers[leader.buffer].device == "cpu"
    if on_cpu and is_gradient and _is_slice(leader, graph):
        (leader,) = others
    return leader.buffer in free or _is_last(leader) or _is_image(leader, graph)


def _chosen(
    graph: Graph, calls: _Calls, loose: frozenset[int], table: Target
) -> frozenset[str]:
    """The buffers that are laid out channels last."""
    return _connected(graph, calls, _free_buffers(graph, calls, loose, table))


def _connected(graph: Graph, calls: _Calls, free: frozenset[str]) -> frozenset[str]:
    """The free buffers that are convolved, or joined with such by operations that keep channels."""
    joined: dict[str, set[str]] = {}
    seeds: set[str] = set()
    for node in graph.nodes:
        if isinstance(node, Extern) and node.target in _CONVOLUTIONS:
            seeds.update(_image_names(node, calls))
        for a, b in _joined_pairs(node, calls):
            joined.setdefault(a, set()).add(b)
            joined.setdefault(b, set()).add(a)
    found, frontier = set(), [n for n in graph.buffers if n in seeds & free]
    while frontier:
        name = frontier.pop()
        if name not in found:
            found.add(name)
            frontier.extend(joined.get(name, set()) & free)
    return frozenset(found)


def _joined_pairs(node: Node, calls: _Calls) -> list[tuple[str, str]]:
    if isinstance(node, Extern):
        names = _image_names(node, calls)
        return [(names[0], n) for n in names[1:]]
    loads = [i for i in node.body if isinstance(i, Load)]
    return [
        (i.buffer, s.buffer) for i in loads for s in node.stores if _same_place(i.index, s.index)
    ]


def _same_place(read: IndexMap, written: IndexMap) -> bool:
    """Images alike in batch and channels, but for an offset (a concatenation's)."""
    if len(read) != len(written) or len(read) not in _IMAGES:
        return False
    pairs = list(zip(read[:2], written[:2]))
    return all(
        isinstance(a, Affine) and isinstance(b, Affine) and a.terms == b.terms for a, b in pairs
    )


def _image_names(node: Extern, calls: _Calls) -> list[str]:
    images = calls.get(node.name)
    if images is None:
        return []
    read = [node.args[k] for k in images.args if k < len(node.args)]
    made = [node.outputs[k] for k in images.results if k < len(node.outputs)]
    return [v.buffer for v in read if isinstance(v, View)] + [o for o in made if o]


# -- the graph, changed --


def _with_returned_apart(
    graph: Graph, calls: _Calls, loose: frozenset[int], chosen: frozenset[str]
) -> Graph:
    """Results that the caller sees as copies of temporaries, where a call gains much or makes them
    channels last anyhow: else the runtime copies them, by a general kernel."""
    held = fixed_buffers(graph, loose)
    buffers, nodes = dict(graph.buffers), []
    for node in graph.nodes:
        seen = _seen(node, calls, held, graph) if _is_last_made(node, calls, graph, chosen) else {}
        made = {n: replace(b, name=f"{n}_made") for n, b in seen.items()}
        buffers.update({b.name: b for b in made.values()})
        if made:
            outputs = tuple(made[o].name if o in made else o for o in node.outputs)
            nodes.append(replace(node, outputs=outputs))
            nodes += [_copying(made[n], b, node) for n, b in seen.items()]
        else:
            nodes.append(node)
    return replace(graph, nodes=tuple(nodes), buffers=buffers)


def _seen(node: Extern, calls: _Calls, held: set[str], graph: Graph) -> dict[str, Buffer]:
    """The images that a call makes for the caller, who wants them otherwise."""
    made = (o for k in calls[node.name].results for o in node.outputs[k : k + 1])
    images = (graph.buffers[o] for o in made if o in held)
    return {
        b.name: b
        for b in images
        if not same_layout(b.shape, b.strides, _channels_last_strides(b.shape))
    }


def _is_last_made(node: Node, calls: _Calls, graph: Graph, chosen: frozenset[str]) -> bool:
    """Whether what a call makes is, or had better be, channels last."""
    if node.name not in calls or not _follows(node, calls, graph, chosen):
        return False
    read = (node.args[k] for k in calls[node.name].args if k < len(node.args))
    return _gains_much(node) or any(_is_last(v) or v.buffer in chosen for v in read)


def _gains_much(node: Node) -> bool:
    """Forward, in groups or of volumes. Otherwise cuDNN's own conversions take as long as ours."""
    if node.target != "aten.convolution.default":
        return False
    return node.args[8] != 1 or len(node.args[1].shape) == 5


def _laid_out(graph: Graph, calls: _Calls, chosen: frozenset[str]) -> Graph:
    """Channels innermost in the chosen buffers; other images that their calls read are copied to
    that layout."""
    buffers = {n: innermost(b) if n in chosen else b for n, b in graph.buffers.items()}
    changed = replace(graph, buffers=buffers)
    nodes: list[Node] = []
    copies: dict[tuple[str, int], Buffer] = {}
    for node in graph.nodes:
        if isinstance(node, Extern):
            node = replace(node, args=_restrided(node.args, graph, changed, chosen))
            if chosen.intersection(_image_names(node, calls)):
                node = _with_copies(node, changed, copies, nodes)
        nodes.append(node)
    outputs = _restrided(graph.outputs, graph, changed, chosen)
    made = {b.name: b for b in copies.values()}
    return replace(graph, buffers={**buffers, **made}, nodes=tuple(nodes), outputs=outputs)


def _restrided(
    args: tuple[Arg, ...], graph: Graph, changed: Graph, chosen: frozenset[str]
) -> tuple[Arg, ...]:
    """Views of the chosen images, or of some of their channels, in `changed`."""
    def moved(view: View) -> View:
        first = view.offset and view.offset // graph.buffers[view.buffer].strides[1]
        return replace(view, strides=changed.buffers[view.buffer].strides, offset=first)

    return tuple(moved(a) if isinstance(a, View) and a.buffer in chosen else a for a in args)


def _with_copies(
    node: Extern, graph: Graph, copies: dict[tuple[str, int], Buffer], nodes: list[Node]
) -> Extern:
    """`node` reading images with channels last; copies that it needs first are appended."""
    args = list(node.args)
    weights = (1,) if _turns_weight(node, graph) else ()
    for k in (*_CALLS[node.target].args, *weights):
        view = args[k]
        if _is_last(view) or not _is_image(view, graph):
            continue
        key = view.buffer, len(view.shape)  # an image of one row, and the row
        if key not in copies:
            source = graph.buffers[view.buffer]
            row = "_row" if len(source.shape) < len(view.shape) else ""
            copy = replace(source, name=f"{view.buffer}_channels_last{row}", shape=view.shape)
            copies[key] = copy = replace(innermost(copy), frozen=False)
            nodes.append(_copying(source, copy, node))
        args[k] = copies[key].view
    return replace(node, args=tuple(args))


def _turns_weight(node: Extern, graph: Graph) -> bool:
    """Whether the weight is given with channels last too. oneDNN brings a large one to its own
    layout at each call, and takes twice as long from eager's layout: [512, 512, 3, 3] in bfloat16,
    one thread, images of 7 x 7: 1.59 ms, or 0.36 for a copy and 0.95. PyTorch copies each for cuDNN
    at each call; ours (templates/gemm/hopper/images.py) read channels in pieces of 16 bytes."""
    if node.target != "aten.convolution.default":
        return False
    _, weight, _, _, _, _, transposed, _, groups = node.args
    buffer = graph.buffers[weight.buffer]
    if not buffer.dtype.is_low_precision or transposed or product(weight.shape[2:]) == 1:
        return False
    if buffer.device != "cpu":
        return hint(weight.shape[1], graph.hints) % _FEW == 0
    large = hint(product(weight.shape), graph.hints) >= _LARGE_WEIGHT
    return large and groups == 1 and len(weight.shape) == 4


def _copying(source: Buffer, target: Buffer, node: Extern) -> Comp:
    """target[...] = source[...], which may lack the row of an image of one."""
    axes = tuple(Axis(f"i{d}", n) for d, n in enumerate(source.shape))
    read = tuple(axis(a.name) for a in axes)
    place = read if len(target.shape) == len(read) else (*read[:2], constant(0), *read[2:])
    body = BodyBuilder()
    store = Store(target.name, place, body.load(source.name, read, source.dtype))
    return Comp(f"copy_{target.name}", axes, body.body, (store,), node.origins)


def innermost(buffer: Buffer) -> Buffer:
    """An image, or a weight, with its channels innermost."""
    return replace(buffer, strides=_channels_last_strides(buffer.shape))


def _channels_last_strides(shape: tuple[Size, ...]) -> tuple[Size, ...]:
    _, channels, *sizes = shape
    pixels = [product((channels, *sizes[d + 1 :])) for d in range(len(sizes))]
    return (product((channels, *sizes)), 1, *pixels)


def one_row(view: View) -> View:
    """[n, c, l] as [n, c, 1, l]."""
    (batch, channels, length), (outer, inner, step) = view.shape, view.strides
    return replace(view, shape=(batch, channels, 1, length),
                   strides=(outer, inner, length * step, step))  # fmt: skip


def is_channels_last(view: View) -> bool:
    """Whether it is an image of two or three sides with the channels innermost: rows of vectors are
    many things."""
    return len(view.shape) > 3 and _is_last(view)


def _is_last(view: View) -> bool:
    return len(view.shape) in _IMAGES and view.strides == _channels_last_strides(view.shape)


def _is_image(view: View, graph: Graph) -> bool:
    """Whether it can be copied, whole, and the copy stays true."""
    lasts, buffer = view.buffer not in mutated_buffers(graph), graph.buffers[view.buffer]
    whole = is_whole(view, graph) or (len(buffer.shape) == 3 and view == one_row(buffer.view))
    return lasts and len(view.shape) in _IMAGES and whole


def _is_slice(view: View, graph: Graph) -> bool:
    """Whether a view is some channels of an image."""
    buffer = graph.buffers[view.buffer]
    unlike = len(view.shape) != len(buffer.shape) or len(buffer.shape) not in _IMAGES
    if unlike or not isinstance(view.offset, int):
        return False
    batch, _, *sizes = buffer.shape
    alike = view.shape == (batch, view.shape[1], *sizes) and view.strides == buffer.strides
    step = buffer.strides[1]
    return alike and isinstance(step, int) and view.offset % step == 0


def is_whole(view: View, graph: Graph) -> bool:
    """Whether a view is its buffer, all of it."""
    return view == graph.buffers[view.buffer].view
