"""`ExportedProgram.run_decompositions`, where each distinct call is traced once.

Torch traces the whole model twice, node by node, though most of its layers are alike. Here each
call of the exported graph is traced alone the first time (`call.py`), and what it is made of is
copied into the new graph for every other call of the same key. Layers of 16 have about as many
distinct calls as one layer.

Exported graphs write to tensors. What has been written to is a value of its own in the new graph,
which all that read the tensor later read; a tensor of the caller or of the model is a result too.
Where a view of it made before is read after the write, torch decomposes the program (`Unhandled`),
as wherever a graph has more in it than calls of operations on plain tensors.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterator

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import (
    ConstantArgument,
    ExportGraphSignature,
    InputKind,
    OutputKind,
    OutputSpec,
    SymIntArgument,
    TensorArgument,
)
from torch.fx import Graph, Node
from torch.fx.node import map_arg

from torchweld.capture import decompose, random, torch_private
from torchweld.capture.decomposing.call import (
    SYMBOLIC,
    Call,
    Little,
    Unhandled,
    expression,
)
from torchweld.capture.decomposing.memory import Memory
from torchweld.core.torch_private import pytree

aten = torch.ops.aten
_NUMBERS = (int, float, bool, *SYMBOLIC)
_CHECK = aten._assert_tensor_metadata.default
_SAME = aten.detach_.default  # of a constant that the model makes: below autograd it does nothing
_KINDS = (
    InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR, InputKind.USER_INPUT,
)  # fmt: skip
_NAMESPACES = ("aten", "prims", "torchweld")
_OF_VALUE = ("val", "tensor_meta", "original_aten")  # what a node says of its own result


@functools.cache
def _table() -> torch_private.Decompositions:
    return torch_private.Decompositions.of(decompose.table())


def decomposed(program: ExportedProgram) -> ExportedProgram:
    """`program.run_decompositions(decompose.table())`."""
    if not _is_handled(program):
        return program.run_decompositions(decompose.table())
    copy = _Copy(program, _table())
    try:
        with torch_private.decomposing(next(_inputs(program)).fake_mode, _table()):
            copy.run()
    except Unhandled:
        return program.run_decompositions(decompose.table())
    return copy.program()


def _is_handled(program: ExportedProgram) -> bool:
    """Plain tensors and sizes, calls of torch's operations and ours, nothing that depends on
    data. Operations of others may have effects, or write in ways of their own."""
    signature, tensors = program.graph_signature, list(_inputs(program))
    if any(spec.kind not in _KINDS for spec in signature.input_specs):
        return False
    if any(spec.kind != OutputKind.USER_OUTPUT for spec in signature.output_specs):
        return False
    if not tensors or any(not torch_private.is_plain_fake(tensor) for tensor in tensors):
        return False
    if any(tensor.fake_mode is not tensors[0].fake_mode for tensor in tensors):
        return False
    return all(map(_is_call, program.graph.nodes))


def _inputs(program: ExportedProgram) -> Iterator[torch.Tensor]:
    for node in program.graph.find_nodes(op="placeholder"):
        if isinstance(node.meta["val"], torch.Tensor):
            yield node.meta["val"]


def _is_call(node: Node) -> bool:
    if node.op in ("placeholder", "output") or node.target in (_CHECK, _SAME):
        return True
    target = node.target
    if isinstance(target, torch_private.OpOverload):
        known = target.namespace in _NAMESPACES and torch.Tag.inplace_view not in target.tags
    else:
        known = not isinstance(target, torch_private.OperatorBase)
    return node.op == "call_function" and known and _is_known(node.meta.get("val"))


def _is_known(value) -> bool:
    if isinstance(value, (tuple, list)):
        return all(each is None or _is_known(each) for each in value)
    if isinstance(value, torch.Tensor):
        sized = torch_private.is_plain_fake(value)
        symbolic = sized and any(isinstance(size, torch.SymInt) for size in value.shape)
        return sized and not (symbolic and torch_private.sizes_from_data(value))
    return isinstance(value, _NUMBERS) and not torch_private.sizes_from_data(value)


class _Copy:
    """The new graph while it grows. `_values`: what old nodes are in it: nodes, numbers, and tuples
    of them."""

    def __init__(self, program: ExportedProgram, table: torch_private.Decompositions) -> None:
        self._old, self._table, self._graph = program, table, Graph()
        self._values: dict[Node, object] = {}
        self._little: dict[tuple, Little] = {}
        self._sizes: dict[object, Node] = {}
        self._memory = Memory(program)

    def run(self) -> None:
        specs = iter(self._old.graph_signature.input_specs)
        for place, node in enumerate(self._old.graph.nodes):
            if node.op == "placeholder":
                self._values[node] = new = self._input(node)
                self._memory.add_input(new, next(specs))
            elif node.op == "call_function":
                self._values[node] = self._call(place, node)
            self._memory.hold(node, self._values.get(node))

    def _input(self, node: Node) -> Node:
        new = self._graph.placeholder(node.target)
        new.name = node.name  # the signature's; a graph by itself would say input_1 for input
        new.meta = dict(node.meta)
        if isinstance(new.meta["val"], SYMBOLIC):
            self._sizes.setdefault(expression(new.meta["val"]), new)
        return new

    def _call(self, place: int, node: Node):
        args, kwargs = map_arg((node.args, dict(node.kwargs)), self._values.__getitem__)
        if node.target is operator.getitem:
            return args[0][args[1]]
        if node.target is _SAME:
            return args[0]
        if node.target is _CHECK:
            return self._add(node.target, args, kwargs, node.meta)
        if isinstance(node.meta["val"], _NUMBERS):
            return self._size(node, args, kwargs)
        call = Call(node.target, args, kwargs)
        little = self._little.get(call.key)
        if little is None:
            little = self._little[call.key] = call.traced(self._table)
        return self._copy(place, node, little, call.nodes)

    def _size(self, node: Node, args, kwargs):
        """A number computed from sizes."""
        given, named = map_arg((args, kwargs), lambda n: n.meta["val"])
        value = node.target(*given, **named)
        if not isinstance(value, SYMBOLIC):
            return value
        return self._add(node.target, args, kwargs, node.meta | {"val": value})

    def _copy(self, place: int, old: Node, little: Little, inputs: tuple[Node, ...]):
        """The result of a call made of these operations."""
        self._memory.check_writes(place, little, inputs)
        made = dict(zip(little.inputs, inputs))
        about = {name: what for name, what in old.meta.items() if name not in _OF_VALUE}
        for node in little.body:
            args, kwargs = map_arg((node.args, dict(node.kwargs)), made.__getitem__)
            own = {name: what for name, what in node.meta.items() if name in _OF_VALUE}
            made[node] = self._add(node.target, args, kwargs, about | own)
        self._memory.add(little, inputs, made)
        for node, written in zip(inputs, little.written):
            if written is not None:
                self._memory.write(self._values, node, made[written])
        return pytree.tree_unflatten(map_arg(little.leaves, made.__getitem__), little.nested)

    def _add(self, target, args: tuple, kwargs: dict, meta: dict) -> Node:
        """A new node, or that of an equal size."""
        value = meta.get("val")
        if isinstance(value, SYMBOLIC) and expression(value) in self._sizes:
            return self._sizes[expression(value)]
        if target is random.SEED:
            args = (args[0], random.new_salt())
        node = self._graph.create_node("call_function", target, args, kwargs, _name(target))
        node.meta = dict(meta)
        if isinstance(value, SYMBOLIC):
            self._sizes[expression(value)] = node
        return node

    def program(self) -> ExportedProgram:
        results = map_arg(self._old.graph.output_node().args[0], self._values.__getitem__)
        results = tuple(results)
        specs = [
            OutputSpec(OutputKind.USER_OUTPUT, _argument(result), spec.target)
            for result, spec in zip(results, self._old.graph_signature.output_specs)
        ]
        written, its_specs = self._memory.written_inputs()
        self._graph.output((*written, *results))
        self._graph.eliminate_dead_code()
        old = self._old
        signature = ExportGraphSignature(old.graph_signature.input_specs, [*its_specs, *specs])
        return ExportedProgram(
            {}, self._graph, signature, old.state_dict, old.range_constraints,
            old.module_call_graph, old.example_inputs, old.constants,
        )  # fmt: skip


def _name(target) -> str | None:
    """That of an operator's node, as torch's tracer gives it: without the overload."""
    is_operator = isinstance(target, torch_private.OpOverload)
    return target.overloadpacket.__name__ if is_operator else None


def _argument(result):
    if not isinstance(result, Node):
        return ConstantArgument("", result)
    tensor = isinstance(result.meta["val"], torch.Tensor)
    return (TensorArgument if tensor else SymIntArgument)(result.name)
