"""One program for a kind of call with a cache, whatever its batch and lengths.

torch.export records the model over a cache of our own making. Batch, length of the prompt and
capacity are symbols from the first call on, sizes of one included: they are traced as sizes that
might be anything (torch's `backed_size_oblivious`), and what the model's own code asks about them
is kept as guards.
"""

from __future__ import annotations

import itertools
import threading
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.export import Dim, ExportedProgram

from torchweld.capture import aot, assigned, attention, export_, torch_private
from torchweld.capture.captured import Captured
from torchweld.capture.decoding import layers, traced_layers
from torchweld.capture.decoding.inputs import Inputs
from torchweld.capture.decoding.store import Part, Room
from torchweld.capture.decomposing.program import decomposed
from torchweld.capture.inline import inline
from torchweld.capture.results import Results
from torchweld.core.errors import UsageError
from torchweld.core.garbage import no_garbage_collection
from torchweld.core.options import Options
from torchweld.core.torch_private import pytree

_MOST_SIZES = 4096  # whose guards are known to hold or not
_FEW = 16  # positions, more than a convolution of a recurrent layer looks back
_numbers = itertools.count()


@dataclass
class _Returned:
    """What the model returned in the trace, and where the layers of an empty cache have their first
    states. An object of its own, since torch.export puts back a module's attributes."""

    spec: pytree.TreeSpec | None = None
    leaves: tuple = ()
    states: tuple = ()


class _Model(torch.nn.Module):
    """What is exported: `model` with a cache of traced layers."""

    def __init__(self, model: torch.nn.Module, inputs: Inputs) -> None:
        super().__init__()
        self.model, self.inputs = model, inputs
        self.returned = _Returned()

    def batches(self, given: dict[str, torch.Tensor]) -> list:
        """The first sizes of the tensors that have one for each sequence."""
        real = self.inputs.tensors
        batch = next(iter(real.values())).shape[0]
        return [tensor.shape[0] for name, tensor in given.items() if real[name].shape[0] == batch]

    def call(self, given: dict[str, torch.Tensor], made: list[list]) -> list[torch.Tensor]:
        """The tensors that the model returns; `made`: the layers of its cache."""
        cache = traced_layers.with_layers(self.inputs.cache, made)
        result = self.model(**{self.inputs.cache_name: cache}, **self.inputs.arguments(given))
        leaves, spec = pytree.tree_flatten(result, is_leaf=lambda x: x is cache)
        self.returned.spec = spec
        self.returned.leaves = tuple(_mark(leaf, cache) for leaf in leaves)
        return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


_TENSOR, _CACHE = object(), object()


def _mark(leaf, cache):
    return _TENSOR if isinstance(leaf, torch.Tensor) else _CACHE if leaf is cache else leaf


class _Prefill(_Model):
    """An empty cache: its first states are results."""

    def forward(self, given: dict):
        _same(self.batches(given))
        made = traced_layers.fresh(self.inputs.cache)
        results = self.call(given, made)
        self.returned.states = traced_layers.names_of(made)
        return results, traced_layers.first_states(made)


class _Step(_Model):
    """A cache with room: it is written to."""

    def __init__(self, model: torch.nn.Module, inputs: Inputs, room: Room) -> None:
        super().__init__(model, inputs)
        self.parts = room.parts

    def forward(self, given: dict, tensors: list, length, masks: list):
        kept = [t for each in tensors for its in each for t in its]
        _same([*self.batches(given), *(t.shape[0] for t in (*kept, *masks))])
        self._same_slots(tensors, masks)
        new = next(iter(given.values())).shape[1]
        given = given | dict(zip([self.inputs.mask], masks))
        results = self.call(given, self._layers(tensors, length))
        length.add_(new)
        return results

    def _same_slots(self, tensors: list, masks: list) -> None:
        """Layers of a kind have as many slots."""
        sizes: dict[tuple, list] = {("full", None): [mask.shape[1] for mask in masks]}
        for parts, each in zip(self.parts, tensors):
            for part, its in zip(parts, each):
                if part.kind != "states":
                    found = sizes.setdefault((part.kind, part.window), [])
                    found += [tensor.shape[2] for tensor in its]
        for each in sizes.values():
            _same(each)

    def _layers(self, tensors: list, length) -> list[list]:
        return [
            [
                traced_layers.TRACED[part.kind](layer, part, its, length)
                for layer, part, its in zip(cache.layers, parts, each)
            ]
            for cache, parts, each in zip(layers.members(self.inputs.cache), self.parts, tensors)
        ]


def _same(sizes: list) -> None:
    """Tells the tracer that they are equal."""
    for size in sizes[1:]:
        torch_private.tell_equal(size, sizes[0])


class Program:
    """A captured kind of call. `order`: for each input of `run`, its position among the model's
    parameters and buffers, a call's tensors, those of the cache, and `constants`."""

    def __init__(
        self, run: aot.Boxed, order: tuple[int, ...], constants: list[torch.Tensor], sizes: Sizes,
        returned: _Returned,
    ) -> None:  # fmt: skip
        self._run, self._again = run, getattr(run, "again", run)
        self._order, self._constants, self._sizes = order, constants, sizes
        self._results, self._leaves = Results(returned.spec), returned.leaves
        self.states = returned.states
        self._tensors = returned.leaves.count(_TENSOR)
        self._lock = threading.Lock()
        self._steady: tuple = (None, None)
        self._args: list = []
        self._places: list[tuple[int, int]] = []

    def accepts(self, given: Sequence[torch.Tensor]) -> bool:
        """The sizes of a call's and its cache's tensors are such as the capture holds for."""
        return self._sizes.fit(tuple([t.shape for t in given]))

    def __call__(self, state: list, given: Sequence[torch.Tensor], kept: list) -> Sequence:
        """The flat results. `state` and `kept` (the cache's tensors) are the same objects as long
        as their tensors are the same, in the same places. One call at a time: what is kept from one
        to the next is of one cache."""
        with self._lock:
            run = self._again
            if self._steady[0] is not state or self._steady[1] is not kept:
                run = self._run
                self._expect(state, len(given), kept)
            args = self._args.copy()
            for place, number in self._places:
                args[place] = given[number]
            return run(args)

    def _expect(self, state: list, given: int, kept: list) -> None:
        values = [*state, *[None] * given, *kept, *self._constants]
        first = len(state)
        self._args = [values[i] for i in self._order]
        moving = ((p, i - first) for p, i in enumerate(self._order) if 0 <= i - first < given)
        self._places, self._steady = list(moving), (state, kept)

    def first_states(self, flat: Sequence) -> Sequence:
        """Of an empty cache, from the flat results."""
        return flat[self._tensors :]

    def returned(self, flat: Sequence, cache) -> object:
        """What the model returns, of the flat results."""
        tensors = iter(flat)
        leaves = [
            next(tensors) if x is _TENSOR else cache if x is _CACHE else x for x in self._leaves
        ]
        return self._results(leaves)


class Sizes:
    """Which sizes of its inputs a capture holds for: those that are as its symbols say, and for
    which all is true that was asked during the trace."""

    def __init__(self, fakes: Sequence[torch.Tensor]) -> None:
        symbolic = (s for t in fakes for s in t.shape if isinstance(s, torch.SymInt))
        found = next(symbolic, None)
        self._shapes = [[_expression(s) for s in t.shape] for t in fakes]
        self._guards, self._ranges = [], {}
        if found is not None:
            self._guards, self._ranges = torch_private.size_guards(found)
        self._known: dict[tuple, bool] = {}

    def fit(self, shapes: tuple) -> bool:
        known = self._known.get(shapes)
        if known is None:
            if len(self._known) >= _MOST_SIZES:
                self._known.clear()
            known = self._known[shapes] = self._hold(shapes)
        return known

    def _hold(self, shapes: tuple) -> bool:
        if any(len(s) != len(real) for s, real in zip(self._shapes, shapes)):
            return False
        pairs = [pair for s, real in zip(self._shapes, shapes) for pair in zip(s, real)]
        values = {s: n for s, n in pairs if not isinstance(s, int) and s.is_Symbol}
        equal = all(n == (s if isinstance(s, int) else s.subs(values)) for s, n in pairs)
        return equal and self._in_range(values) and self._guarded(values)

    def _in_range(self, values: dict) -> bool:
        bounds = ((n, *self._ranges.get(s, (0, None))) for s, n in values.items())
        return all(low <= n and (high is None or n <= high) for n, low, high in bounds)

    def _guarded(self, values: dict) -> bool:
        return all(bool(guard.subs(values) == True) for guard in self._guards)  # noqa: E712


def _expression(size):
    return size.node.expr if isinstance(size, torch.SymInt) else size


def capture(
    model: torch.nn.Module, inputs: Inputs, room: Room | None, options: Options,
    compile_graph: aot.CompileGraph, on_compiled: aot.OnCompiled | None,
) -> Program:  # fmt: skip
    """`model` for calls like this one, without gradients. `room`: what its cache holds; None: it is
    empty. Raises what torch.export raises for a model that it cannot trace."""
    start = time.perf_counter()
    traced = _Prefill(model, inputs) if room is None else _Step(model, inputs, room)
    live = export_.LiveState(traced)
    program = _exported(traced, inputs, room)
    state, moving = len(live.names), len(inputs.tensors)
    given = [*inputs.tensors.values(), *(() if room is None else room.held(inputs.masked))]
    order, constants = export_.wire_inputs(program, live, state + len(given))
    fakes = _fakes(program, order, range(state, state + len(given)))
    _holding_for(given, fakes)
    static = frozenset(i for i, p in enumerate(order) if not state <= p < state + moving)
    captured = Captured(
        export_.clean(program), f"{'prefill' if room is None else 'step'}{next(_numbers)}",
        "inference", static, capture_s=time.perf_counter() - start,
    )  # fmt: skip
    run = aot.compile_or_run_eagerly(compile_graph, captured, options, on_compiled)
    sizes = _holding_for(given, fakes)  # once more: compilation may have asked about sizes
    return Program(run, tuple(order), constants, sizes, traced.returned)


def _holding_for(given: Sequence[torch.Tensor], fakes: Sequence[torch.Tensor]) -> Sizes:
    sizes = Sizes(fakes)
    if not sizes.fit(tuple(t.shape for t in given)):  # two stood for one, or for many positions
        raise UsageError("its code differs with the number of sequences or positions")
    return sizes


def _exported(traced: _Model, inputs: Inputs, room: Room | None) -> ExportedProgram:
    batch = next(iter(inputs.tensors.values())).shape[0]
    given = {name: _example(t, batch) for name, t in inputs.tensors.items()}
    if room is None and layers.has_states(inputs.cache):
        given = _shorter(given)
    arguments, dims = (given,), (_dims_of_call(given),)
    if room is not None:
        tensors = [
            [[_example(t, batch) for t in part.tensors] for part in parts] for parts in room.parts
        ]
        masks = [_example(room.mask, batch)] if inputs.masked else []
        arguments += tensors, room.length, masks
        dims += _dims_of_room(room), None, [{0: Dim.AUTO, 1: Dim.AUTO}] * len(masks)
    states = torch_private.states_of_lstm()
    with torch.no_grad(), torch_private.any_sizes(), states, warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # torch.export's own use of LeafSpec
        with no_garbage_collection(), assigned.refused(traced.model):
            program = torch_private.exported(traced, arguments, dynamic_shapes=dims, strict=False)
        export_.check_lstm(program)
        export_.hold_squeezes(program)
        inline(program.graph_module)
        attention.simplify(program.graph_module)
        program = decomposed(program)
    export_.write_back(program, to_inputs=True)
    return program


def _example(tensor: torch.Tensor, batch: int) -> torch.Tensor:
    """In place of one sequence, two: torch's C++ takes a size of one for no other. Values do not
    matter to a trace."""
    one = batch == 1 == tensor.shape[0]
    return tensor.new_empty((2, *tensor.shape[1:])) if one else tensor


def _shorter(given: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """A few positions in place of a prompt's: code of recurrent layers may be a loop over them,
    which is traced as long as it is. The graph then holds for that number alone."""
    length = next(iter(given.values())).shape[1]
    return {
        name: t.new_empty((t.shape[0], _FEW, *t.shape[2:]))
        if t.dim() > 1 and t.shape[1] == length else t
        for name, t in given.items()
    }  # fmt: skip


def _dims_of_call(tensors: dict[str, torch.Tensor]) -> dict[str, dict[int, object]]:
    """All dimensions may vary, but one position stays one: a step of one token is a kind of its
    own. What the model's weights decide, the trace finds."""
    return {
        name: {d: Dim.AUTO if d == 0 or n > 1 else Dim.STATIC for d, n in enumerate(tensor.shape)}
        for name, tensor in tensors.items()
    }


def _dims_of_room(room: Room) -> list:
    return [[list(map(_dims_of_part, [part] * len(part.tensors), part.tensors)) for part in parts]
            for parts in room.parts]  # fmt: skip


def _dims_of_part(part: Part, tensor: torch.Tensor) -> dict[int, object]:
    slots = {} if part.kind == "states" or tensor.shape[2] == 1 else {2: Dim.AUTO}
    return {0: Dim.AUTO} | slots


def _fakes(program: ExportedProgram, order: Sequence[int], wanted: range) -> list[torch.Tensor]:
    """The fake tensors of the inputs at these positions."""
    nodes = program.graph_module.graph.find_nodes(op="placeholder")
    found = {position: node.meta["val"] for position, node in zip(order, nodes)}
    return [found[position] for position in wanted]
