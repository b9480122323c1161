"""Convolutions whose windows do not overlap, as products of matrices on a GPU.

A convolution by 1 x 1 at stride one multiplies the pixels [b*h*w, c] of an image with its channels
innermost; one whose stride is its kernel (the patches of a vision transformer) multiplies patches
[b*i*j, c*r*s] that lie apart, which one copy gathers. cuBLAS is at least as fast at both as cuDNN,
and a product takes what follows into its kernel. Measured on an H100: the 16 x 16 patches of 64
images of 224 x 224 in bfloat16 take cuDNN 418 us (and 100 us of padding and conversions), a product
of that size about 25.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from torchweld.ir.affine import axis, constant
from torchweld.ir.build import BodyBuilder
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
    Ref,
    Store,
    View,
)
from torchweld.ir.size import Size, product
from torchweld.layout.channels import is_channels_last, is_whole

_CONVOLUTION = "aten.convolution.default"
_ALIGNED = 8  # elements: 16 bytes
_LONG = 32  # elements of rows that can be padded to that (layout/rows.py)


@dataclass(frozen=True, slots=True)
class _Pixels:
    """A channels-last image [b, c, h, w] that becomes the matrix [b*h*w, c] on the same memory."""

    image: Buffer

    @property
    def matrix(self) -> Buffer:
        b, c, h, w = self.image.shape
        return replace(self.image, shape=(b * h * w, c), strides=(c, 1))

    def index(self, place: IndexMap) -> IndexMap:
        (b, c, i, j), (_, _, height, width) = place, self.image.shape
        return ((b * height + i) * width + j, c)


def products_of_patches(graph: Graph) -> Graph:
    """`graph` with such convolutions of 16-bit types as `aten.mm` and `aten.addmm`."""
    found = [n for n in graph.nodes if isinstance(n, Extern) and _is_product(n, graph)]
    images = {n.outputs[0]: _Pixels(graph.buffers[n.outputs[0]]) for n in found}
    images = {name: p for name, p in images.items() if _can_become_matrix(name, graph)}
    if not images:
        return graph
    buffers = {**graph.buffers, **{name: p.matrix for name, p in images.items()}}
    nodes: list[Node] = []
    for node in graph.nodes:
        if isinstance(node, Extern) and node.writes and node.writes[0] in images:
            nodes.extend(_product(node, graph, buffers))
        else:
            nodes.append(_reading_matrices(node, images) if isinstance(node, Comp) else node)
    return replace(graph, buffers=buffers, nodes=tuple(nodes))


# -- which --


def may_be_product(node: Extern, graph: Graph) -> bool:
    """Whether a node is such a convolution, if its images have channels last."""
    if node.target != _CONVOLUTION or node.kwargs or node.outputs[0] is None:
        return False
    _, weight, _, stride, padding, _, transposed, _, groups = node.args
    if transposed or groups != 1 or any(padding) or len(weight.shape) != 4:
        return False
    if graph.buffers[weight.buffer].dtype.bytes != 2 or tuple(stride) != tuple(weight.shape[2:]):
        return False
    static = all(isinstance(s, int) for s in (*weight.shape, *weight.strides))
    return static and _has_whole_rows(weight.shape)


def _has_whole_rows(weight: tuple[Size, ...]) -> bool:
    """Whether the rows of pixels, or of patches that are copied, are aligned or can be. How many
    results there are does not matter: a kernel of ours stores any number, the library's are padded.
    cuDNN's convolutions by 1 x 1 want aligned channels on both sides as well."""
    depth = product(weight[1:])
    return not depth % _ALIGNED or (weight[2:] == (1, 1) and depth >= _LONG)


def _is_product(node: Extern, graph: Graph) -> bool:
    if not may_be_product(node, graph) or not _is_whole_image(graph.buffers[node.outputs[0]]):
        return False
    x, weight, bias = node.args[:3]
    dense_bias = bias is None or bias.strides == (1,)
    if weight.shape[2:] == (1, 1):
        return dense_bias and is_channels_last(x) and 1 in weight.strides[:2]
    return dense_bias and is_whole(x, graph) and _depth_order(weight) is not None


def _is_whole_image(buffer: Buffer) -> bool:
    return is_channels_last(buffer.view)


def _can_become_matrix(name: str, graph: Graph) -> bool:
    """Whether every Comp that touches the image says where by affine maps."""
    for node in graph.nodes:
        if isinstance(node, Comp):
            places = [i.index for i in node.body if isinstance(i, Load) and i.buffer == name]
            if name in node.writes or any(isinstance(e, Ref) for p in places for e in p):
                return False
            if any(s.init == name for s in node.stores):
                return False
    return True


def _depth_order(weight: View) -> tuple[int, ...] | None:
    """The dimensions 1 to 3 of a weight [o, c, r, s] as they lie in memory, outermost first; None
    if a row of it has gaps."""
    order = tuple(sorted((1, 2, 3), key=lambda d: weight.strides[d], reverse=True))
    length = 1
    for d in reversed(order):
        if weight.strides[d] != length and weight.shape[d] != 1:
            return None
        length *= weight.shape[d]
    return order


# -- the graph, changed --


def _reading_matrices(comp: Comp, images: dict[str, _Pixels]) -> Comp:
    def moved(instr):
        if isinstance(instr, Load) and instr.buffer in images:
            return replace(instr, index=images[instr.buffer].index(instr.index))
        return instr

    if not images.keys() & set(comp.reads):
        return comp
    return replace(comp, body=tuple(map(moved, comp.body)))


def _product(node: Extern, graph: Graph, buffers: dict[str, Buffer]) -> list[Node]:
    """The product, after the copy that gathers its rows if they lie apart; adds what the copy
    writes to `buffers`."""
    x, weight, bias = node.args[:3]
    columns, rows = weight.shape[0], buffers[node.outputs[0]].shape[0]
    depth = product(weight.shape[1:])
    before: list[Node] = []
    row = 1  # step between the elements of a patch
    if weight.shape[2:] == (1, 1):
        row = weight.strides[1]
        factor = View(x.buffer, (rows, depth), (depth, 1), x.offset)
    else:
        copied = _patches(node, graph)
        buffers[copied.writes[0]] = _matrix(copied.writes[0], (rows, depth), buffers[x.buffer])
        factor = View(copied.writes[0], (rows, depth), (depth, 1))
        before = [copied]
    turned = View(weight.buffer, (depth, columns), (row, weight.strides[0]), weight.offset)
    args: tuple[Arg, ...] = (factor, turned) if bias is None else (bias, factor, turned)
    target = "aten.mm.default" if bias is None else "aten.addmm.default"
    return [*before, replace(node, target=target, args=args)]


def _matrix(name: str, shape: tuple[Size, Size], like: Buffer) -> Buffer:
    return replace(like, name=name, shape=shape, strides=(shape[1], 1), frozen=False)


def _patches(node: Extern, graph: Graph) -> Comp:
    """patches[(b, i, j), (c, r, s)] = x[b, c, i*height + r, j*width + s], the depth in the weight's
    order."""
    x, weight = node.args[:2]
    batch, _, down, across = graph.buffers[node.outputs[0]].shape
    extents = {"b": batch, "i": down, "j": across}
    extents |= dict(zip("crs", weight.shape[1:]))
    b, c, i, j, r, s = map(axis, "bcijrs")
    depth, factor = constant(0), 1
    for d in reversed(_depth_order(weight)):
        depth, factor = depth + axis("?crs"[d]) * factor, factor * weight.shape[d]
    source = graph.buffers[x.buffer]
    body = BodyBuilder()
    place = (b, c, i * weight.shape[2] + r, j * weight.shape[3] + s)
    value = body.load(source.name, place, source.dtype)
    name = f"{node.outputs[0]}_patches"
    axes = tuple(Axis(n, extents[n]) for n in "bijcrs")
    store = Store(name, ((b * down + i) * across + j, depth), value)
    return Comp(f"patches_{node.name}", axes, body.body, (store,), node.origins)
