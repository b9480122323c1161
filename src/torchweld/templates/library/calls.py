"""Library calls chosen for contractions: which Externs of a planned graph to make in another way.

On a CPU products that plan/cpu_products.py leaves become `torchweld.linear`, a oneDNN call on
the weight as it is: those in bfloat16 (1.05x of ATen's on Zen 4, one thread), and those of so few
rows in float32 (up to 1.3x of MKL's). A copy of the weight in oneDNN's own layout is worth 1.4x
more for 16 rows, 1.05x for 128, 1.01x for 1024: it is made for few rows, where the option allows
the memory. An activation that follows the layer alone moves into
the call. The functions that the targets name are in `runtime/library_calls.py`.

On a GPU `addmm` of 16-bit types takes a gelu that follows it alone, where it is the one by tanh:
that is cublasLt's epilogue (on a CPU the same call is the one by erf), whose error in float32 is
1e-6 to 3e-6 of the result's norm. Measured on an H100, [4096, 768] times [768, 3072] in bfloat16:
38.3 us where the two calls take 32.9 + 19.5. Large results of odd rows: `odd_rows.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch

from torchweld.core import dtypes
from torchweld.core.dtypes import DType
from torchweld.core.options import Options
from torchweld.ir.nodes import Comp, Extern, Graph, View, views
from torchweld.ir.size import hint, product
from torchweld.templates.library import odd_rows
from torchweld.templates.library.activations import activation_of

LINEAR = "torchweld.linear"
ADDMM_ACTIVATION = "aten._addmm_activation.default"
PACKED_LINEAR = "torchweld.packed_linear"
_CHAIN = 384  # terms
_ROWS_TO_PACK_FOR = 64  # fewer
_ROWS_TO_COPY_FOR = 512  # at least
_MOST_COPIED = 32 << 20  # bytes: fresh memory beyond that costs more than its copy
_MOST_PIECES = 8  # each copies its columns of x: a third of the time at 42, for a depth of 32000
_LEAST_WORK = 1 << 20  # multiply-adds; below, the call costs more (12 us) than it saves
_DTYPES = frozenset((dtypes.f32, dtypes.bf16))

# (call, activation that follows, graph) -> the call that does both
WithActivation = Callable[[Extern, Comp, Graph], "Extern | None"]


@dataclass(frozen=True, slots=True)
class Linear:
    """x [m, k] @ weight [n, k].T + bias [n], as views."""

    x: View
    weight: View
    bias: View | None


def gpu_calls(graph: Graph, options: Options, kind: str) -> Graph:
    """`graph` with Externs replaced by faster calls of cuBLAS. `kind`: inference, forward or
    backward."""
    graph = odd_rows.with_odd_rows(graph) if kind == "inference" else graph
    return graph if options.numerics == "eager" else _with_activations(graph, with_gelu)


def cpu_calls(graph: Graph, options: Options) -> Graph:
    """`graph` with activations moved into the calls of oneDNN before them."""
    return graph if options.numerics == "eager" else _with_activations(graph, _linear_with)


def linear_call(node: Extern, graph: Graph, packs: bool) -> Extern | None:
    """oneDNN's call of the product that `node` is, None where it does not take it. `packs`: a copy
    of a weight that does not change may be kept in oneDNN's layout."""
    linear = linear_of(node)
    available = torch.backends.mkldnn.is_available()
    if linear is None or not available or not suits_onednn(linear, graph):
        return None
    target = _target(linear, graph, packs)
    args = (linear.x, linear.weight, linear.bias, "none", None)
    return target and replace(node, target=target, args=args)


def takes_activation(call: Extern, reader: Comp, graph: Graph) -> bool:
    """Whether `reader` is an activation that the call does as well."""
    return _linear_with(call, reader, graph) is not None


def linear_of(node: Extern) -> Linear | None:
    """The linear layer that an Extern is, None if it is another call."""
    reader = _READERS.get(node.target)
    return reader(*node.args) if reader and not node.kwargs else None


def suits_onednn(linear: Linear, graph: Graph) -> bool:
    """Whether oneDNN takes the operands as they are, and the product is worth its call."""
    weight, x = graph.buffers[linear.weight.buffer], linear.x
    if weight.dtype not in _DTYPES or len(x.shape) != 2:
        return False
    if graph.buffers[x.buffer].dtype != weight.dtype or not _is_bias(linear, graph):
        return False
    if not all(isinstance(s, int) for s in (*linear.weight.shape, *linear.weight.strides)):
        return False
    if not _suits_layouts(linear, weight.dtype):
        return False
    if len(linear_pieces(linear.weight.shape[1], weight.dtype)) > _MOST_PIECES:
        return False
    return hint(product((x.shape[0], *linear.weight.shape)), graph.hints) >= _LEAST_WORK


def linear_pieces(width: int, dtype: DType) -> list[slice]:
    """How a reduction over `width` columns is divided. oneDNN adds up float32 in one chain, or two
    for 768: at 3072 terms its error is 2.0 times that of MKL, at 512 1.6 times, in these pieces at
    most 1.45 times, for 8 % of the time."""
    steps, start = [], 0
    while dtype == dtypes.f32 and width - start > _CHAIN:
        step = 2 * _CHAIN if width - start >= 2 * _CHAIN else _CHAIN
        steps.append(slice(start, start + step))
        start += step
    return steps if start == width > 0 else [*steps, slice(start, width)]


def is_in_pieces(call: Extern, graph: Graph) -> bool:
    """Whether a call of oneDNN's adds up several products."""
    weight = call.args[1]
    return len(linear_pieces(weight.shape[1], graph.buffers[weight.buffer].dtype)) > 1


def workspace_bytes(node: Extern, graph: Graph) -> int:
    """What a call allocates beside its result, at the sizes seen at capture: of a reduction in
    pieces, the sum before, and a copy of a piece of the weight."""
    if node.target == odd_rows.ODD_ROWS:
        return odd_rows.workspace_bytes(node, graph)
    if node.target not in (LINEAR, PACKED_LINEAR):
        return 0
    x, weight, *_ = node.args
    dtype = graph.buffers[weight.buffer].dtype
    pieces = linear_pieces(weight.shape[1], dtype)
    if len(pieces) == 1:
        return 0
    copied = 0 if node.target == PACKED_LINEAR else pieces[0].stop * weight.shape[0]
    return (hint(x.shape[0], graph.hints) * weight.shape[0] + copied) * dtype.bytes


def _suits_layouts(linear: Linear, dtype: DType) -> bool:
    """Float32 operands may be transposed: oneDNN reorders them, and still wins. A weight with gaps
    between its rows falls to its reference kernel, a thousand times slower."""
    x, weight = linear.x, linear.weight
    if dtype == dtypes.f32:
        return all(_is_dense(v) or _is_dense(v.transposed) for v in (x, weight))
    return _is_dense(x) and _is_dense(weight)


def _is_dense(view: View) -> bool:
    return view.strides == (view.shape[1], 1)


def _is_bias(linear: Linear, graph: Graph) -> bool:
    bias = linear.bias
    if bias is None:
        return True
    same = graph.buffers[bias.buffer].dtype == graph.buffers[linear.weight.buffer].dtype
    return same and bias.shape == linear.weight.shape[:1] and bias.strides == (1,)


_READERS: Mapping[str, Callable] = {
    "aten.mm.default": lambda x, w: Linear(x, w.transposed, None),
    "aten.addmm.default": lambda b, x, w: Linear(x, w.transposed, b),
    "aten.linear.default": lambda x, w, b=None: Linear(x, w, b),
}


def _target(linear: Linear, graph: Graph, packs: bool) -> str | None:
    """Which call, None for ATen's. Pieces of a weight whose rows lie in memory are copied at each
    call, which only many rows pay for."""
    rows = hint(linear.x.shape[0], graph.hints)
    weight = graph.buffers[linear.weight.buffer]
    pieces = linear_pieces(linear.weight.shape[1], weight.dtype)
    copies = len(pieces) > 1 and _is_dense(linear.weight)
    columns = pieces[0].stop - pieces[0].start if pieces[0].stop else linear.weight.shape[1]
    if copies and linear.weight.shape[0] * columns * weight.dtype.bytes > _MOST_COPIED:
        return None
    if packs and weight.frozen and (copies or rows < _ROWS_TO_PACK_FOR):
        return PACKED_LINEAR
    return None if copies and rows < _ROWS_TO_COPY_FOR else LINEAR


def _with_activations(graph: Graph, with_activation: WithActivation) -> Graph:
    """before: t = linear(x, w, b, "none");  y = act(t), t used nowhere else
    after:  y = linear(x, w, b, act)"""
    readers = _readers(graph)
    fused: dict[str, Extern] = {}
    for node in graph.nodes:
        followers = readers.get(node.writes[0], []) if node.writes else []
        if isinstance(node, Extern) and len(followers) == 1 and isinstance(followers[0], Comp):
            call = with_activation(node, followers[0], graph)
            if call is not None:
                fused[node.name] = call
    gone = {node.outputs[0]: node.name for node in fused.values()}
    nodes = tuple(
        fused.get(n.name, n)
        for n in graph.nodes
        if not (isinstance(n, Comp) and n.writes[0] in gone)
    )
    return replace(graph, nodes=nodes)


def _linear_with(node: Extern, comp: Comp, graph: Graph) -> Extern | None:
    if not_in_linear(node, comp, graph) is not None:
        return None
    activation = activation_of(comp, node.outputs[0], graph)
    return _fused(
        node, comp, args=(*node.args[:3], activation.name, activation.algorithm)
    )


def with_gelu(node: Extern, comp: Comp, graph: Graph) -> Extern | None:
    """cublasLt's product with a gelu behind it, if that is what the two nodes are: its epilogue
    takes a bias along the rows."""
    if not_with_gelu(node, comp, graph) is not None:
        return None
    return _fused(node, comp, target=ADDMM_ACTIVATION, kwargs=(("use_gelu", True),))


def not_with_gelu(node: Extern, comp: Comp, graph: Graph) -> str | None:
    """Why cublasLt's epilogue does not make `comp` behind the product that `node` is."""
    if node.target != "aten.addmm.default" or node.kwargs or len(node.args[0].shape) != 1:
        return "the product has no bias along its rows"
    if graph.buffers[node.args[0].buffer].dtype.bytes != 2:
        return "the product is not in 16 bits"
    activation = activation_of(comp, node.outputs[0], graph)
    if activation is None or (activation.name, activation.algorithm) != ("gelu", "tanh"):
        return "what follows is not tanh GELU"
    return None


def not_in_linear(node: Extern, comp: Comp, graph: Graph) -> str | None:
    """Why oneDNN's call does not make `comp` behind the product that `node` is."""
    if node.target not in (LINEAR, PACKED_LINEAR):
        return "the call is not oneDNN's"
    if is_in_pieces(node, graph):
        return "the product is summed in parts, each a call"
    return None if activation_of(comp, node.outputs[0], graph) else "oneDNN has no such activation"


def _fused(node: Extern, comp: Comp, **changes) -> Extern:
    return replace(node, outputs=comp.writes, origins=node.origins + comp.origins, **changes)


def _readers(graph: Graph) -> dict[str, list]:
    """Who reads each buffer: nodes, and the graph itself for what it returns."""
    found: dict[str, list] = {}
    for node in graph.nodes:
        for name in node.reads:
            found.setdefault(name, []).append(node)
    for view in views(graph.outputs):
        found.setdefault(view.buffer, []).append(graph)
    return found
