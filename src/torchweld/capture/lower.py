"""fx graph of functional ATen calls -> IR. One row of the lowering table per overload; whatever
has none stays a call (Extern)."""

from __future__ import annotations

import operator
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

from torchweld.capture.captured import INNER_CAST, ROUNDED, Captured
from torchweld.capture.lowering import externs
from torchweld.capture.lowering.build import GraphBuilder
from torchweld.capture.lowering.call import Call, spec_of
from torchweld.capture.lowering.nest import copied
from torchweld.capture.lowering.rows import ROWS
from torchweld.capture.numbers import known_constant, known_number
from torchweld.capture.parts import WHOLE, Part
from torchweld.capture.repeated import NONE, Repeated
from torchweld.capture.returned import window_of_input
from torchweld.capture.torch_private import OpOverload
from torchweld.core.errors import NotLowered
from torchweld.core.events import warn_once
from torchweld.core.options import Options
from torchweld.ir import views
from torchweld.ir.nodes import Arg, Extern, Graph, Node, Origin
from torchweld.ir.nodes import views as views_in
from torchweld.ir.views import Tensor

_TORCH = str(Path(torch.__file__).parent)
_OURS = str(Path(__file__).parent)  # capture/entry.py calls torch's own modules


@dataclass(frozen=True, slots=True)
class Lowered:
    """`constants`: tensors that the module holds, by buffer name: the graph's last inputs, in this
    order."""

    graph: Graph
    constants: dict[str, torch.Tensor]


def lower(
    captured: Captured,
    options: Options | None = None,
    layers: Repeated = NONE,
    part: Part = WHOLE,
) -> Lowered:
    """The IR of a part of a captured graph, without the `layers` that are left out: there, an input
    or output is None. What the part is given follows the graph's inputs. Raises NotLowered where a
    size depends on data or the graph holds a higher-order operation."""
    return _Lowering(captured, options or Options(), layers, part).run()


# Where windows on memory have their offset among their arguments.
_OFFSETS = {
    torch.ops.aten.as_strided.default: 3, torch.ops.aten.as_strided_copy.default: 3,
    torch.ops.aten.as_strided_scatter.default: 4,
}  # fmt: skip


class _Lowering:
    def __init__(
        self, captured: Captured, options: Options, layers: Repeated, part: Part
    ) -> None:
        self.captured, self.layers, self.part = captured, layers, part
        self._left_out = layers.left_out | part.left_out
        self._rounds = options.numerics == "eager"
        self.graph = GraphBuilder(self._rounds)
        self._gradients = _gradients(captured) if captured.kind == "backward" else frozenset()
        self.env: dict[torch.fx.Node, object] = {}
        self.inputs: list[str | None] = []
        self.constants: dict[str, torch.Tensor] = {}
        self.outputs: tuple[Arg, ...] = ()
        self._claimed: set[str] = set()  # buffers that an output may not share

    def run(self) -> Lowered:
        nodes = list(self.captured.module.graph.nodes)
        self.graph.mutated = _mutated_inputs(nodes)
        self.graph.sizes.bind_inputs([n.meta.get("val") for n in nodes if n.op == "placeholder"])
        given = frozenset(self.part.given)
        for node in nodes:
            if node not in self._left_out:
                self._lower(node)
            elif node.op == "placeholder":
                self.inputs.append(None)
            elif node in given:
                self._given(node)
            if node in self.layers.stands_for:
                self.env[self.layers.stands_for[node]] = self.env[node]
        inputs = (*self.inputs, *self.constants)
        kept = _live(self.graph.nodes, inputs, self.outputs)
        used = {v.buffer for v in views_in(self.outputs)}.union(
            *((*n.reads, *n.writes) for n in kept)
        )
        buffers = {
            name: b
            for name, b in self.graph.buffers.items()
            if name in used or name in self.constants
        }
        inputs = tuple(i if i in buffers else None for i in inputs)
        symbols = tuple(self.graph.sizes.symbols)
        return Lowered(
            Graph(self.captured.name, symbols, buffers, kept, inputs, self.outputs), self.constants
        )

    def _lower(self, node: torch.fx.Node) -> None:
        try:
            getattr(self, f"_{node.op}")(node)
        except NotLowered as error:
            error.node = error.node or node.name
            raise

    # -- inputs

    def _placeholder(self, node: torch.fx.Node) -> None:
        value, position = node.meta.get("val"), len(self.inputs)
        if isinstance(value, torch.Tensor):
            if value.is_neg():
                raise NotLowered(f"the input {node.name} is in memory with the other sign")
            if value._is_zerotensor():
                raise NotLowered(f"the input {node.name} is zero, and not in memory")
            static = position in self.captured.static_inputs
            frozen = static and node not in self.part.changed
            self.env[node] = self._input(node.name, value, frozen)
            self.inputs.append(self.env[node].source)
        else:
            self.env[node] = self._number(value)
            self.inputs.append(None)

    def _given(self, node: torch.fx.Node) -> None:
        """What another part makes."""
        self.env[node] = self._input(node.name, node.meta["val"], False)
        self.inputs.append(node.name)

    def _input(self, name: str, value: torch.Tensor, frozen: bool) -> Tensor:
        spec = spec_of(self.graph, value)
        return views.whole(
            self.graph.buffer(name, spec.shape, spec.dtype, spec.strides, spec.device, frozen)
        )

    def _number(self, value):
        if isinstance(value, (torch.SymFloat, torch.SymBool)):
            raise NotLowered(f"the number {value} is known only at the call")
        return self.graph.sizes.convert(value) if isinstance(value, torch.SymInt) else value

    def _get_attr(self, node: torch.fx.Node) -> None:
        value = operator.attrgetter(node.target)(self.captured.module)
        if not isinstance(value, torch.Tensor):
            raise NotLowered(f"{node.target} is a {type(value).__name__}")
        known = known_constant(value)
        self.env[node] = known or self._input(node.name, value, True)
        if known is None:
            self.constants[self.env[node].source] = value

    # -- calls

    def _call_function(self, node: torch.fx.Node) -> None:
        if node.target is operator.getitem:
            self.env[node] = self.env[node.args[0]][node.args[1]]
        elif not isinstance(node.meta.get("val"), (torch.Tensor, tuple, list, type(None))):
            self.env[node] = self._number(node.meta["val"])
        elif not isinstance(node.target, OpOverload):
            raise NotLowered("it is not a plain ATen operation")
        else:
            self.graph.origin = origin_of(node)
            self.graph.of_gradient = node in self._gradients
            self.graph.is_inner_cast = INNER_CAST in node.meta
            self.graph.round_always = self._rounds or ROUNDED in node.meta
            self.env[node] = self._lower_call(node)

    def _lower_call(self, node: torch.fx.Node):
        if self._counts_from_memory(node):
            raise NotLowered("it counts from where the memory of an input begins")
        if (number := known_number(node, self.env)) is not None:
            return number
        given = tuple(a.meta.get("val") if isinstance(a, torch.fx.Node) else None
                      for a in node.args)  # fmt: skip
        call = Call(self.graph, node.name, node.meta.get("val"), _used(node), given)
        row, mark = ROWS.get(str(node.target)), self.graph.mark()
        if row is not None:
            try:
                return row(
                    call,
                    *map(self._argument, node.args),
                    **{k: self._argument(v) for k, v in node.kwargs.items()},
                )
            except NotLowered:
                pass
            except Exception as error:  # of one operation, which need not be that of the graph
                why = f"{type(error).__name__}: {error}"
                place = text_of(origin_of(node))
                warn_once(f"lower {node.target} {why}", f"{place} is left to ATen: {why}")
                self.graph.back_to(mark)
        return externs.emit(call, node, self.env)

    def _counts_from_memory(self, node: torch.fx.Node) -> bool:
        """Whether a window begins where an offset from the memory of an input says. An input may
        begin elsewhere in its memory at each call, and torch does not guard on where. A gradient's
        memory is taken for its own."""
        place = None if node in self._gradients else _OFFSETS.get(node.target)
        if place is None or len(node.args) <= place or node.args[place] is None:
            return False
        value = self.env.get(node.args[0])
        held = isinstance(value, Tensor) and value.buffer and not value.copied
        return bool(held) and value.source in self.inputs

    def _argument(self, arg):
        if isinstance(arg, torch.fx.Node):
            return self.env[arg]
        if isinstance(arg, (tuple, list)):
            return tuple(map(self._argument, arg))
        return self._number(arg)

    # -- outputs

    def _output(self, node: torch.fx.Node) -> None:
        results = self.part.results_of(self.captured)
        results = [None if r in self.layers.left_out else r for r in results]
        self._claimed = {i for i in self.inputs if i}
        for arg in results:  # what eager itself returns as views of something
            value = self.env.get(arg) if isinstance(arg, torch.fx.Node) else None
            if isinstance(value, Tensor) and value.buffer and not value.copied:
                self._claimed.add(value.source)
        made = {arg: self._result(arg) for arg in results if isinstance(arg, torch.fx.Node)}
        self.outputs = tuple(made[a] if isinstance(a, torch.fx.Node) else a for a in results)

    def _result(self, node: torch.fx.Node) -> Arg:
        """A tensor that eager has in memory of its own shares none with an input or another
        output."""
        value = self.env[node]
        if not isinstance(value, Tensor):
            return value
        window = window_of_input(node, self.graph.sizes)
        if window is not None and window.buffer != value.source:
            return window
        strides = self.graph.sizes.many(node.meta["val"].stride())
        if not value.buffer or (value.copied and value.source in self._claimed):
            return self.graph.view_of(copied(self.graph, value, strides))
        self._claimed.add(value.source)
        return externs.window(self.graph, value, strides)


def _gradients(captured: Captured) -> frozenset[torch.fx.Node]:
    """What a backward makes of its tangents; the rest are values of the forward, made again."""
    found: set[torch.fx.Node] = set()
    for node in captured.module.graph.nodes:
        given = node.op == "placeholder" and node.name.startswith("tangents")
        if given or not found.isdisjoint(node.all_input_nodes):
            found.add(node)
    return frozenset(found)


def _mutated_inputs(nodes: list[torch.fx.Node]) -> frozenset[str]:
    """Placeholders that some call writes to."""
    calls = [n for n in nodes if isinstance(n.target, OpOverload) and n.target._schema.is_mutable]
    return frozenset(a.name for n in calls for a in n.all_input_nodes if a.op == "placeholder")


def _used(node: torch.fx.Node) -> frozenset[int]:
    """The results that somebody reads."""
    value = node.meta.get("val")
    if not isinstance(value, (tuple, list)):
        return frozenset((0,)) if node.users else frozenset()
    if any(user.target is not operator.getitem for user in node.users):
        return frozenset(range(len(value)))
    return frozenset(user.args[1] for user in node.users if user.users)


def _live(nodes: list[Node], inputs: tuple, outputs: tuple[Arg, ...]) -> tuple[Node, ...]:
    """Less the Comps that nothing reads (copies for a row that then declined). `inputs`: what is
    written there, the caller sees."""
    needed, kept = {*inputs, *(v.buffer for v in views_in(outputs))}, []
    for node in reversed(nodes):
        if isinstance(node, Extern) or needed.intersection(node.writes):
            needed.update(node.reads)
            kept.append(node)
    return tuple(reversed(kept))


def origin_of(node: torch.fx.Node) -> Origin:
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack") or {}
    module = _module_path(str(next(reversed(stack.values()))[0])) if stack else ""
    return Origin(str(node.target), module, _users_line(node.meta.get("stack_trace") or ""))


def text_of(origin: Origin) -> str:
    """aten.exp.default (at layers.0.act, model.py:12): the operation and its place, if known."""
    place = ", ".join(filter(None, (origin.module, origin.source)))
    return f"{origin.op} (at {place})" if place else origin.op


@cache
def _module_path(name: str) -> str:
    """As `named_modules` says it. L['self']._modules['fc'].act  ->  fc.act"""
    name = re.sub(r"\._modules\['([^']+)'\]", r".\1", name)
    return re.sub(r"^[LG]\['\w+'\]\.?", "", name)


@cache
def _users_line(trace: str) -> str:
    """file:line of the innermost frame of a formatted stack outside torch, if there is one."""
    frames = re.findall(r'File "([^"]+)", line (\d+)', trace)
    frames = [frame for frame in frames if not frame[0].startswith(_OURS)]
    users = [frame for frame in frames if not frame[0].startswith(_TORCH)]
    return ":".join((users or frames)[-1]) if frames else ""
