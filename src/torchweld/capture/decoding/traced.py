"""One program for a kind of call with a cache, whatever its batch and lengths.

torch.export records the model over a cache of our own making. Batch, length of the prompt and
capacity are symbols from the first call on, sizes of one included: they are traced as sizes that
might be anything (torch's `backed_size_oblivious`), and what the model's own code asks about them
is kept as guards.
"""

from __future__ import annotations

import copy
import itertools
import threading
import time
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch.export import Dim, ExportedProgram

from torchweld.capture import aot, assigned, attention, export_, torch_private
from torchweld.capture.captured import Captured
from torchweld.capture.decoding import layers
from torchweld.capture.decoding.inputs import MASK, Inputs
from torchweld.capture.decoding.store import Room
from torchweld.capture.decomposing.program import decomposed
from torchweld.capture.inline import inline
from torchweld.capture.results import Results
from torchweld.core.garbage import no_garbage_collection
from torchweld.core.options import Options
from torchweld.core.torch_private import pytree

_MOST_SIZES = 4096  # whose guards are known to hold or not
_numbers = itertools.count()


@dataclass
class _Returned:
    """What the model returned in the trace. An object of its own, since torch.export puts back a
    module's attributes."""

    spec: pytree.TreeSpec | None = None
    leaves: tuple = ()


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

    def call(self, given: dict[str, torch.Tensor], made: list) -> list[torch.Tensor]:
        """The tensors that the model returns; `made`: the layers of its cache."""
        cache = copy.copy(self.inputs.cache)
        cache.layers = made
        cache.offloading = False  # what is kept elsewhere is not seen here
        if not made:
            cache.layer_class_to_replicate = layers.Fresh
        result = self.model(**{self.inputs.cache_name: cache}, **given, **self.inputs.others)
        leaves, spec = pytree.tree_flatten(result, is_leaf=lambda x: x is cache)
        self.returned.spec = spec
        self.returned.leaves = tuple(_mark(leaf, cache) for leaf in leaves)
        return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


_TENSOR, _CACHE = object(), object()


def _mark(leaf, cache):
    return _TENSOR if isinstance(leaf, torch.Tensor) else _CACHE if leaf is cache else leaf


class _Prefill(_Model):
    """An empty cache: its new keys and values are results."""

    def forward(self, given: dict):
        _same(self.batches(given))
        made = [layers.Fresh(layer.is_sliding) for layer in self.inputs.cache.layers]
        results = self.call(given, made)
        return results, [layer.keys for layer in made], [layer.values for layer in made]


class _Step(_Model):
    """A cache with room: it is written to."""

    def forward(self, given: dict, keys: list, values: list, lengths: list, masks: list):
        _same([*self.batches(given), *(t.shape[0] for t in (*keys, *values, *masks))])
        _same([*(t.shape[2] for t in (*keys, *values)), *(t.shape[1] for t in masks)])
        new = next(iter(given.values())).shape[1]
        given = given | dict(zip([MASK], masks))
        each = lengths * len(keys) if len(lengths) == 1 else lengths
        sliding = [layer.is_sliding for layer in self.inputs.cache.layers]
        results = self.call(given, list(map(layers.Slot, keys, values, each, sliding)))
        for length in lengths:
            length.add_(new)
        return results


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
        self.tensors = returned.leaves.count(_TENSOR)  # what follows them is the cache's
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
    traced = _Prefill(model, inputs) if room is None else _Step(model, inputs)
    live = export_.LiveState(traced)
    program = _exported(traced, inputs, room)
    state, moving = len(live.positions), len(inputs.tensors)
    given = moving + (0 if room is None else len(room.held(inputs.masked)))
    order, constants = export_.wire_inputs(program, live, state + given)
    fakes = _fakes(program, order, range(state, state + given))
    static = frozenset(i for i, p in enumerate(order) if not state <= p < state + moving)
    captured = Captured(
        export_.clean(program), f"{'prefill' if room is None else 'step'}{next(_numbers)}",
        "inference", static, capture_s=time.perf_counter() - start,
    )  # fmt: skip
    run = aot.compile_or_run_eagerly(compile_graph, captured, options, on_compiled)
    return Program(run, tuple(order), constants, Sizes(fakes), traced.returned)


def _exported(traced: _Model, inputs: Inputs, room: Room | None) -> ExportedProgram:
    batch = next(iter(inputs.tensors.values())).shape[0]
    given = dict(zip(inputs.tensors, _two(inputs.tensors.values(), batch)))
    arguments, dims = (given,), (_dims_of_call(given),)
    if room is not None:
        masks = _two([room.mask], batch) if inputs.masked else []
        arguments += _two(room.keys, batch), _two(room.values, batch), list(room.lengths), masks
        cached = [{0: Dim.AUTO, 2: Dim.AUTO}] * len(room.keys)
        masks_vary = [{0: Dim.AUTO, 1: Dim.AUTO}] * len(masks)
        dims += cached, cached, [None] * len(room.lengths), masks_vary
    with torch.no_grad(), torch_private.any_sizes(), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # torch.export's own use of LeafSpec
        with no_garbage_collection(), assigned.refused(traced.model):
            program = torch.export.export(traced, arguments, dynamic_shapes=dims, strict=False)
        export_.check_lstm(program)
        export_.hold_squeezes(program)
        inline(program.graph_module)
        attention.simplify(program.graph_module)
        program = decomposed(program)
    export_.write_back(program, to_inputs=True)
    return program


def _two(tensors: Iterable[torch.Tensor], batch: int) -> list[torch.Tensor]:
    """In place of one sequence, two: torch's C++ takes a size of one for no other. Values do not
    matter to a trace."""
    return [t.new_empty((2, *t.shape[1:])) if batch == 1 == t.shape[0] else t for t in tensors]


def _dims_of_call(tensors: dict[str, torch.Tensor]) -> dict[str, dict[int, object]]:
    """All dimensions may vary, but one position stays one: a step of one token is a kind of its
    own. What the model's weights decide, the trace finds."""
    return {
        name: {d: Dim.AUTO if d == 0 or n > 1 else Dim.STATIC for d, n in enumerate(tensor.shape)}
        for name, tensor in tensors.items()
    }


def _fakes(program: ExportedProgram, order: Sequence[int], wanted: range) -> list[torch.Tensor]:
    """The fake tensors of the inputs at these positions."""
    nodes = program.graph_module.graph.find_nodes(op="placeholder")
    found = {position: node.meta["val"] for position, node in zip(order, nodes)}
    return [found[position] for position in wanted]
