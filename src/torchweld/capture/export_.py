"""The ahead-of-time form: a module exported once per signature, called without Dynamo's guards.

Parameters and buffers are looked up in the live module at every call, so what is loaded, moved,
trained or replaced is followed. Plain Python attributes are constants of the capture: torch.export
does not see them.
"""

from __future__ import annotations

import contextlib
import itertools
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Union

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind
from torch.utils.hooks import RemovableHandle

from torchweld.capture import (
    aot,
    assigned,
    attention,
    circular,
    constant,
    effects,
    fits,
    functional,
    joint,
    losses,
    paddings,
    random,
    small_products,
    torch_private,
)
from torchweld.capture.captured import Captured
from torchweld.capture.decomposing.program import decomposed
from torchweld.capture.inline import inline
from torchweld.capture.numbers import known_constant
from torchweld.capture.results import Results
from torchweld.capture.scores import Takes
from torchweld.capture.written_out import write_out
from torchweld.core import events
from torchweld.core.errors import UsageError, one_line
from torchweld.core.garbage import no_garbage_collection
from torchweld.core.options import Options
from torchweld.core.torch_private import pytree

MAX_SIGNATURES = 8
_MAX_CHECKS = (
    4  # ways for tensors to be of the same kind: inference mode, one tensor given twice, ...
)
_WRITES = (OutputKind.BUFFER_MUTATION, OutputKind.PARAMETER_MUTATION)
_SCALARS = (bool, int, float, str, type(None))
_LITERALS = "lifted_tensor"  # torch's names of tensors that were written out in what was traced
_PLAIN = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
_numbers = itertools.count()

Watch = Callable[..., Union[Callable[[], bool], None]]


def _no_watch(*watched) -> None:
    """There is no quick way to see what has changed."""


class AheadOfTime:
    """Calls of one module: an exported graph where one fits, `otherwise` (torch.compile) where none
    can.

    A call goes `otherwise` when it needs a gradient, under autocast and other ambient modes, when a
    module has forward hooks, when the model cannot be exported, and when there have been more than
    MAX_SIGNATURES kinds of inputs (the last two with one warning).

    `watch(options, places, lengths, tensors)` gives a function that says whether all of these are
    as they were, or None where there is no quick way: while they are, calls of a known kind go
    straight to their program.
    """

    def __init__(
        self, model: torch.nn.Module, compile_graph: aot.CompileGraph, options: Options,
        on_compiled: aot.OnCompiled | None, otherwise: Callable, watch: Watch = _no_watch,
        takes: Takes | None = None,
    ) -> None:  # fmt: skip
        self._takes = takes
        self._model, self._compile_graph, self._options = model, compile_graph, options
        self._on_compiled, self._otherwise, self._watch = on_compiled, otherwise, watch
        self._live = LiveState(model)
        self._programs: list[Exported] = []
        self._refused = False
        self._unchanged: Callable[[], bool] | None = None

    def __call__(self, *args, **kwargs):
        if self._steps_aside():
            return self._otherwise(*args, **kwargs)
        inputs, key = flatten(args, kwargs)
        unchanged = self._unchanged
        if unchanged is not None and not torch.is_grad_enabled() and unchanged():
            for program in self._programs:
                if program.takes(unchanged, key, inputs):
                    return program.run_again(inputs)
        return self._call(args, kwargs, inputs, key)

    def _call(self, args: tuple, kwargs: dict, inputs: list[torch.Tensor], key):
        """With a look at everything."""
        if not self._live.is_current():
            self._live, self._programs = LiveState(self._model), []
        values = [*self._live.tensors(), *inputs]
        if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in values):
            return self._otherwise(*args, **kwargs)
        key = (key, self._live.training())
        for program in self._programs:
            if program.fits(key, values):
                self._expect(program, values, len(inputs))
                return program.run(values)
        if any(t is None for t in values):  # a parameter was removed
            self._live, self._programs = LiveState(self._model), []
            values = [*self._live.tensors(), *inputs]
        program = self._capture(args, kwargs)
        return self._otherwise(*args, **kwargs) if program is None else program.run(values)

    def _expect(self, program: Exported, values: list, inputs: int) -> None:
        """More calls like this one: the last `inputs` of `values` may be others."""
        if self._unchanged is None or not self._unchanged():
            state = values[: len(values) - inputs]
            self._unchanged = self._watch(self._options, *self._live.watched(), state)
        program.expect(self._unchanged, values, inputs)

    def prepare(self, args: tuple, kwargs: dict) -> None:
        """Captures for these inputs now, unless such a call would step aside. Errors: UsageError if
        the model does not run with them."""
        training = torch.is_grad_enabled() and self._model.training
        needs_grad = any(p.requires_grad for p in self._model.parameters())
        if not self._steps_aside() and not (training and needs_grad):
            self._capture(args, kwargs, fits.check_runs)

    def _steps_aside(self) -> bool:
        return self._refused or self._live.has_hooks() or not torch_private.plain_surroundings()

    def _capture(
        self, args: tuple, kwargs: dict, blame: Callable = lambda *failed: None
    ) -> Exported | None:
        """The program for these inputs; None if that cannot be done. `blame(model, args, kwargs,
        error)` is asked first whether it is the inputs' fault, and raises then."""
        if len(self._programs) >= MAX_SIGNATURES:
            return self._refuse(f"more than {MAX_SIGNATURES} kinds of inputs")
        try:
            program = capture_export(
                self._model, args, kwargs, self._options, self._compile_graph, self._on_compiled,
                self._takes,
            )  # fmt: skip
        except Exception as error:
            blame(self._model, args, kwargs, error)
            return self._refuse(one_line(error))
        self._programs.insert(0, program)
        return program

    def _refuse(self, why: str) -> None:
        self._refused = True
        name = type(self._model).__name__
        message = f"{name} goes through torch.compile, not ahead of time: {why}"
        events.warn_once(f"export:{name}:{why}", message)


class LiveState:
    """What a call looks up again in the module: its structure, tensors, training flags and
    hooks."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._modules = list(model.modules())
        self._flags = [module.__dict__ for module in self._modules]
        self._branches = [module._modules for module in self._modules]
        self._children = [(branch, name) for branch in self._branches for name in branch]
        self._structure = self._current_structure()
        slots = _slots(model).values()
        self._absent = [slot for slot, _ in slots if _get(slot) is None]
        found = [(slot, names) for slot, names in slots if _get(slot) is not None]
        self._present = [slot for slot, _ in found]
        self.names = tuple(names[0] for _, names in found)
        self.positions = {name: i for i, (_, names) in enumerate(found) for name in names}
        self._hooks_seen, self._hooked = -1, False

    def tensors(self) -> list:
        """The parameters and buffers of now, in the order of `names`; `positions`: of any of
        their qualified names, since torch.export takes any."""
        return [owner.get(name) for owner, name in self._present]

    def training(self) -> list[bool]:
        return [flags["training"] for flags in self._flags]

    def is_current(self) -> bool:
        """No module was replaced, added or removed since, and no missing parameter was set."""
        absent = all(_get(slot) is None for slot in self._absent)
        return absent and self._current_structure() == self._structure

    def watched(self) -> tuple[tuple, tuple]:
        """(dict, key, what is there, ...), (dict, its length, ...) of all that a call depends
        on."""
        found = [(branch, name, branch.get(name)) for branch, name in self._children]
        found += [(*slot, None) for slot in self._absent]
        found += [(*slot, _get(slot)) for slot in self._present]
        found += [(flags, "training", flags["training"]) for flags in self._flags]
        lengths = [(branch, len(branch)) for branch in self._branches]
        return tuple(itertools.chain(*found)), tuple(itertools.chain(*lengths))

    def _current_structure(self) -> tuple[list, list[int]]:
        return [branch.get(name) for branch, name in self._children], list(map(len, self._branches))

    def has_hooks(self) -> bool:
        """Some module has forward hooks. Looked at again only after a hook was registered
        anywhere."""
        if self._hooked or self._hooks_seen != RemovableHandle.next_id:
            self._hooks_seen = RemovableHandle.next_id
            self._hooked = any(m._forward_hooks or m._forward_pre_hooks for m in self._modules)
        return self._hooked


# The dict that holds a tensor or None, and its key there.
_Slot = tuple[dict, str]


def _slots(model: torch.nn.Module) -> dict[tuple[int, str], tuple[_Slot, list[str]]]:
    """Of parameters and buffers, by identity: where each is, and its qualified names, of which a
    module in two places has two."""
    slots: dict[tuple[int, str], tuple[_Slot, list[str]]] = {}
    for prefix, module in model.named_modules(remove_duplicate=False):
        for owner in (module._parameters, module._buffers):
            for name in owner:
                _, names = slots.setdefault((id(owner), name), ((owner, name), []))
                names.append(f"{prefix}.{name}" if prefix else name)
    return slots


def _get(slot: _Slot):
    owner, name = slot
    return owner.get(name)


@dataclass(frozen=True)
class _Again:
    """What may be done again for calls of one kind, as long as `unchanged` is true: `args` are
    complete but for the inputs, each of which goes to some of `places`: (position, its number).
    `call`: the program's, which may take it that state is where it was."""

    call: Callable[[list], Sequence]
    unchanged: Callable[[], bool]
    check: torch_private.TensorCheck
    args: list
    places: tuple[tuple[int, int], ...]


@dataclass
class Exported:
    """One captured signature. `values` of a call: the live tensors, then the tensors among its
    inputs.

    order: for each input of `program`, its position in values + constants.
    constants: tensors that are neither (made by the trace).
    tied: pairs of positions of one parameter, which the graph has under one name only.
    """

    program: aot.Boxed
    key: tuple
    order: list[int]
    constants: list[torch.Tensor]
    results: Results
    kinds: list[tuple]
    tied: list[tuple[int, int]]
    checks: list[torch_private.TensorCheck] = field(default_factory=list)
    again: _Again | None = None

    def expect(self, unchanged: Callable[[], bool] | None, values: list, inputs: int) -> None:
        """Calls of the same state, with other values for the last `inputs` of `values`."""
        self.again = None
        if unchanged is not None:
            state = len(values) - inputs
            places = ((p, i - state) for p, i in enumerate(self.order) if state <= i < len(values))
            known = [*values[:state], *[None] * inputs, *self.constants]
            args, check = [known[i] for i in self.order], torch_private.TensorCheck(values[state:])
            call = getattr(self.program, "again", self.program)
            self.again = _Again(call, unchanged, check, args, tuple(places))

    def takes(self, unchanged: Callable[[], bool], key, inputs: list[torch.Tensor]) -> bool:
        """A call of that kind, in the state that `unchanged` watches; `key`: of `flatten`."""
        again = self.again
        if again is None or again.unchanged is not unchanged or key != self.key[0]:
            return False
        return again.check.passes(inputs)

    def run_again(self, inputs: list[torch.Tensor]):
        args = self.again.args.copy()
        for place, number in self.again.places:
            args[place] = inputs[number]
        return self.results(self.again.call(args))

    def fits(self, key: tuple, values: list) -> bool:
        """The call has this structure, these constants and training flags, and tensors of these
        kinds."""
        if key != self.key:
            return False
        return any(check.passes(values) for check in self.checks) or self._fits_slowly(values)

    def _fits_slowly(self, values: list) -> bool:
        if any(v is None for v in values) or [kind_of(v) for v in values] != self.kinds:
            return False
        if any(values[i] is not values[j] for i, j in self.tied):
            return False
        if len(self.checks) < _MAX_CHECKS:
            self.checks.append(torch_private.TensorCheck(values))
        return True

    def run(self, values: list):
        values = values + self.constants
        return self.results(self.program([values[i] for i in self.order]))


def capture_export(
    model: torch.nn.Module, args: tuple, kwargs: dict, options: Options,
    compile_graph: aot.CompileGraph, on_compiled: aot.OnCompiled | None = None,
    takes: Takes | None = None,
) -> Exported:  # fmt: skip
    """`model` exported and compiled for inputs such as these, without gradients.

    Sizes, training flags and all that is no tensor are constants. Raises what torch.export raises
    for a model that it cannot trace, UsageError for one that writes to its inputs or attributes.
    """
    start, live = time.perf_counter(), LiveState(model)
    tensors, key = flatten(args, kwargs)
    values = [*live.tensors(), *tensors]
    kinds = [kind_of(v) for v in values]
    program = traced(model, args, kwargs, takes)
    write_back(program)
    order, constants = wire_inputs(program, live, len(values))
    state, inputs = range(len(live.names)), range(len(live.names), len(values))
    static = frozenset(i for i, position in enumerate(order) if position not in inputs)
    captured = Captured(clean(program), f"export{next(_numbers)}", "inference", static)
    captured = replace(captured, capture_s=time.perf_counter() - start)
    return Exported(
        aot.compile_or_run_eagerly(compile_graph, captured, options, on_compiled),
        (key, live.training()),
        order,
        constants,
        Results(program.call_spec.out_spec),
        kinds,
        [(i, j) for i in state for j in range(i) if values[i] is values[j]],
        [torch_private.TensorCheck(values)],
    )


def traced(
    model: torch.nn.Module, args: tuple, kwargs: dict, takes: Takes | None = None,
    dynamic_shapes: Mapping | None = None,
) -> ExportedProgram:  # fmt: skip
    """`model` as ATen operations. `dynamic_shapes`: torch.export's; sizes that vary may be any,
    zero and one included. Raises what torch.export raises."""
    sizes = torch_private.any_sizes() if dynamic_shapes else contextlib.nullcontext()
    states = torch_private.states_of_lstm()
    with torch.no_grad(), warnings.catch_warnings(), no_garbage_collection(), sizes, states:
        warnings.simplefilter("ignore", FutureWarning)  # torch.export's own use of LeafSpec
        warnings.filterwarnings("ignore", "The tensor attribute", UserWarning)  # see `assigned`
        with assigned.refused(model):
            program = torch_private.exported(
                model, args, kwargs, dynamic_shapes=dynamic_shapes, strict=False
            )
        check_lstm(program)
        hold_squeezes(program)
        inline(program.graph_module)
        attention.simplify(program.graph_module)
        write_out(program.graph_module, takes)
        losses.say_margins(program.graph_module)
        circular.write_out_circular(program.graph_module)
        paddings.take_in(program.graph_module)
        program = decomposed(program)
        effects.without_tokens(program)
        return program


def hold_squeezes(program: ExportedProgram) -> None:
    """A dimension that was not squeezed, because it was not of size one, must not be at calls."""
    for node in program.graph_module.graph.nodes:
        if constant.name_of(node) in ("squeeze", "squeeze_"):
            given, *dims = node.args
            sizes = given.meta["val"].shape
            chosen = dims[0] if dims else range(len(sizes))
            chosen = (chosen,) if isinstance(chosen, int) else chosen
            torch_private.differs_at_one([sizes[d] for d in chosen if sizes])


def check_lstm(program: ExportedProgram) -> None:
    """Torch 2.11 takes the states that an LSTM on a CPU returns to have one dimension more."""
    target = torch.ops.aten.lstm.input
    for node in program.graph_module.graph.find_nodes(op="call_function", target=target):
        if node.meta["val"][1].dim() != node.args[1][0].meta["val"].dim():
            raise UsageError("this version of torch decomposes an LSTM wrongly")


def wire_inputs(program: ExportedProgram, live: LiveState, values: int) -> tuple[list[int], list]:
    """(position of each graph input in values + constants, the constants); drops inputs that are no
    tensors."""
    order, constants = [], []
    user = itertools.count(len(live.names))
    nodes = program.graph_module.graph.find_nodes(op="placeholder")
    for node, spec in zip(nodes, program.graph_signature.input_specs):
        if spec.kind in (InputKind.PARAMETER, InputKind.BUFFER):
            order.append(live.positions[spec.target])
        elif spec.kind == InputKind.CONSTANT_TENSOR:
            value = program.constants[spec.target]
            if spec.target.startswith(_LITERALS) and known_constant(value) is not None:
                _as_attribute(program.graph_module, node, spec.target, value)
                continue
            order.append(values + len(constants))
            constants.append(value)
        elif isinstance(node.meta["val"], torch.Tensor):
            order.append(next(user))
        else:
            program.graph_module.graph.erase_node(node)
    return order, constants


def _as_attribute(
    module: torch.fx.GraphModule, node: torch.fx.Node, name: str, value: torch.Tensor
) -> None:
    """What is read of an input from an attribute instead, as Dynamo has it: its value is known."""
    module.register_buffer(name, value)
    with module.graph.inserting_after(node):
        read = module.graph.get_attr(name)
    read.meta = dict(node.meta)
    node.replace_all_uses_with(read)
    module.graph.erase_node(node)


def write_back(program: ExportedProgram, to_inputs: bool = False) -> None:
    """return (new, y)  ->  copy_(buffer, new); return (y,): what the model writes to is written by
    the graph. `to_inputs`: the caller's tensors too."""
    graph, signature = program.graph_module.graph, program.graph_signature
    writes = (*_WRITES, OutputKind.USER_INPUT_MUTATION) if to_inputs else _WRITES
    if any(s.kind not in (*writes, OutputKind.USER_OUTPUT) for s in signature.output_specs):
        raise UsageError("the model writes to its inputs")
    if any(s.kind == InputKind.TOKEN for s in signature.input_specs):
        raise UsageError("the model has an operation with side effects, such as a check")
    placeholders = graph.find_nodes(op="placeholder")
    homes = {s.target: node for s, node in zip(signature.input_specs, placeholders) if s.target}
    homes |= {node.name: node for node in placeholders}
    output, kept = graph.output_node(), []
    for value, spec in zip(output.args[0], signature.output_specs):
        if spec.kind in writes:
            with graph.inserting_before(output):
                copy = graph.call_function(
                    torch.ops.aten.copy_.default, (homes[spec.target], value)
                )
            copy.meta = dict(homes[spec.target].meta)
        else:
            kept.append(value)
    output.args = (tuple(kept),)


def clean(program: ExportedProgram) -> torch.fx.GraphModule:
    """The graph without what only checks, as plain a module as AOTAutograd gives."""
    graph = program.graph_module.graph
    for node in graph.find_nodes(
        op="call_function", target=torch.ops.aten._assert_tensor_metadata.default
    ):
        graph.erase_node(node)
    module = torch.fx.GraphModule(program.graph_module, graph)
    joint.drop_detach(module)
    functional.rewrite(module)
    small_products.write_out_batches(module)
    random.gather_seeds(module)
    joint.write_in_place(module)
    module.graph.eliminate_dead_code()
    module.recompile()
    return module


def flatten(args: tuple, kwargs: dict) -> tuple[list[torch.Tensor], object]:
    """(the tensors of a call, a key that says how they are arranged, what everything else is, and
    whether sums must repeat)."""
    tensors: list[torch.Tensor] = []
    key: list[object] = [torch.are_deterministic_algorithms_enabled(), len(args), *kwargs]
    for value in (*args, *kwargs.values()):
        kind = type(value)
        if kind is torch.Tensor:
            tensors.append(value)
            key.append(kind)
        elif kind in _SCALARS:
            key.append((kind, value))
        else:
            return _flatten_nested(args, kwargs)
    return tensors, key


def _flatten_nested(args: tuple, kwargs: dict) -> tuple[list[torch.Tensor], object]:
    leaves, spec = pytree.tree_flatten((args, kwargs))
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    others = [None if isinstance(x, torch.Tensor) else (type(x), x) for x in leaves]
    return tensors, (torch.are_deterministic_algorithms_enabled(), spec, others)


def kind_of(t: torch.Tensor) -> tuple:
    """What a capture depends on: shape, strides, dtype, device; the class too, unless it is a plain
    one."""
    known = torch.Tensor if type(t) in _PLAIN else type(t)
    return tuple(t.shape), t.stride(), t.dtype, t.device, known
