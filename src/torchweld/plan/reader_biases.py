"""Biases of library products on a CPU, added by the kernels that read the result.

    t = addmm(b, x, w);  comp y = gelu(t)   ->   t = mm(x, w);  comp y = gelu(t + b)

ATen copies the bias to every row of the result before the product adds to it: a pass over the
result of its own. To a kernel that reads the result anyway, the addition costs nothing. Only in
float32: a 16-bit product would be rounded before the addition.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace

from torchweld.core import dtypes
from torchweld.ir.affine import Affine
from torchweld.ir.build import BodyBuilder
from torchweld.ir.nodes import Buffer, Comp, Extern, Graph, Load, Node, View
from torchweld.ir.substitute import move_store, with_operands
from torchweld.plan.decisions import Fusion, Plan
from torchweld.plan.epilogues import Readers
from torchweld.templates.pointwise_reduce.price import bytes_of

_CALL, _PLAIN = "aten.addmm.default", "aten.mm.default"


def biases_in_readers(plan: Plan, names: Iterable[str]) -> Plan:
    """`plan` with the biases of those of the calls `names` that one Comp alone reads added there.
    The bytes of a bias move with it, before and after a fusion alike."""
    graph, wanted = plan.graph, set(names)
    readers = Readers(graph)
    moved = {n.name: n for n in graph.nodes if n.name in wanted and _may_move(n, readers, graph)}
    taken_by = {n.outputs[0]: readers.only(n).name for n in moved.values()}
    biases = {n.outputs[0]: n.args[0] for n in moved.values()}
    nodes = tuple(
        replace(n, target=_PLAIN, args=n.args[1:]) if n.name in moved else _with(n, biases)
        for n in graph.nodes
    )
    more: Counter[str] = Counter()
    for result, bias in biases.items():
        more[taken_by[result]] += bytes_of(graph.buffers[bias.buffer], graph.hints)
    told = tuple(_heavier(d, more) if isinstance(d, Fusion) else d for d in plan.decisions)
    return replace(plan, graph=replace(graph, nodes=nodes), decisions=told)


def _heavier(fusion: Fusion, more: Mapping[str, int]) -> Fusion:
    by = more[fusion.kernel]
    return replace(
        fusion, bytes_before=fusion.bytes_before + by, bytes_after=fusion.bytes_after + by)


def _may_move(node: Node, readers: Readers, graph: Graph) -> bool:
    if not isinstance(node, Extern) or node.target != _CALL or node.kwargs:
        return False
    bias, result = node.args[0], graph.buffers[node.outputs[0]]
    reader = readers.only(node)
    takes = reader is not None and _takes(reader, result.name)
    return takes and result.dtype == dtypes.f32 and _is_row(bias, result, graph)


def _is_row(bias: View, result: Buffer, graph: Graph) -> bool:
    """One number a column, that nothing in the graph writes."""
    plain = bias == View(bias.buffer, result.shape[-1:], (1,))
    alone = not any(bias.buffer in n.writes for n in graph.nodes)
    return plain and alone and graph.buffers[bias.buffer].strides == (1,)


def _takes(comp: Comp, result: str) -> bool:
    """Whether `comp` reads the product by plain loads whose last index is the bias's."""
    if any(s.init == result for s in comp.stores):
        return False
    loads = (i for i in comp.body if isinstance(i, Load) and i.buffer == result)
    return all(i.guard is None and isinstance(i.index[-1], Affine) for i in loads)


def _with(node: Node, biases: dict[str, View]) -> Node:
    """`node` with a bias added to what it loads of each product."""
    if not isinstance(node, Comp) or not biases.keys() & set(node.reads):
        return node
    builder, values = BodyBuilder(), []
    for instr in node.body:
        value = builder.emit(with_operands(instr, values.__getitem__))
        if isinstance(instr, Load) and instr.buffer in biases:
            bias = biases[instr.buffer].buffer
            added = builder.load(bias, instr.index[-1:], instr.dtype)
            value = builder.op("add", value, added)
        values.append(value)
    stores = tuple(move_store(s, values.__getitem__, {}) for s in node.stores)
    return replace(node, body=builder.body, stores=stores)
