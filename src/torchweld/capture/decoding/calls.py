"""Calls of a module with a cache of transformers', as `generate()` makes them.

Dynamo would compile one graph for a first call, others for a cache that is filled, for each length
that it takes for a constant, for sizes of one, and for another batch. Here there are at most two
for all of these: `prefill`, an empty cache and several tokens, and `decode`, one more token for a
cache with room (`store.py`). More tokens for a filled cache (a conversation that goes on) are a
third. What else a call may be, such as gradients, goes through Dynamo as before.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from types import ModuleType

import torch

from torchweld.capture import aot, export_, torch_private
from torchweld.capture.decoding.inputs import Inputs, read
from torchweld.capture.decoding.store import Layout, Pool, Room, Store
from torchweld.capture.gate import Gate
from torchweld.core import events
from torchweld.core.errors import one_line
from torchweld.core.options import Options

PASS = object()  # the call is not for here
_CACHES = "transformers.cache_utils"
_MOST_KINDS = 8  # of calls, each captured once
_THROUGH_DYNAMO = "calls with a cache go through torch.compile"
_PROMPTS_IN_EAGER = "prompts run unfused, steps of one token are fused"


def cache_class() -> type | None:
    """transformers' class of caches, if the program has imported it."""
    module = sys.modules.get(_CACHES)
    return getattr(module, "Cache", None)


def has_cache(args: tuple, kwargs: dict) -> bool:
    """One of the arguments is a cache."""
    if _CACHES not in sys.modules:  # asked in each call of any model
        return False
    kind = cache_class()
    return kind is not None and any(isinstance(value, kind) for value in (*kwargs.values(), *args))


@dataclass
class _Kind:
    """Calls that differ in sizes and values alone, and what serves them."""

    otherwise: str  # if it is refused
    programs: list = field(default_factory=list)
    refused: bool = False

    def accepting(self, given: list):
        """The program for tensors of these sizes, None if there is none."""
        return next((p for p in self.programs if p.accepts(given)), None)


class CachedCalls:
    """Calls of one module with a cache. `watch`: see export_.AheadOfTime."""

    def __init__(
        self, model: torch.nn.Module, compile_graph: aot.CompileGraph, options: Options,
        on_compiled: aot.OnCompiled | None, watch: export_.Watch,
    ) -> None:  # fmt: skip
        self._model, self._compile_graph, self._options = model, compile_graph, options
        self._on_compiled, self._watch = on_compiled, watch
        self._names: tuple[str, ...] | None = None
        self._live: export_.LiveState | None = None
        self._state: list[torch.Tensor] = []
        self._unchanged: Callable[[], bool] | None = None
        self._kinds: dict[tuple, _Kind] = {}
        self._last: tuple = (None,) * 4  # room, state, sizes and program of the last step
        self._training: tuple[bool, ...] = ()
        self._pool = Pool()
        self._layouts: tuple[Layout, ...] | None = None  # of a cache that was filled
        self._gate = Gate()

    def __call__(self, args: tuple, kwargs: dict, others: Callable):
        """What the model returns, its cache filled further; `others(args, kwargs)` makes the calls
        that are not for here."""
        with self._gate.calling():
            made = self._served(args, kwargs)
            return others(args, kwargs) if made is PASS else made

    def _served(self, args: tuple, kwargs: dict):
        """PASS: nothing was done."""
        if torch.is_grad_enabled() or not torch_private.plain_surroundings():
            return PASS
        inputs = self._read(args, kwargs)
        if inputs is None or not self._current_state():
            return PASS
        tokens = next(iter(inputs.tensors.values()))
        if tokens.dim() < 2 or tokens.numel() == 0:
            return PASS
        return self._call(inputs, tokens)

    # -- what is called

    def _read(self, args: tuple, kwargs: dict) -> Inputs | None:
        """The arguments, the tensor of tokens first; None if they are none that we know."""
        named = kwargs if not args else {**dict(zip(self._signature(), args)), **kwargs}
        return None if len(named) < len(args) else read(named, cache_class())

    def _signature(self) -> tuple[str, ...]:
        if self._names is None:
            self._names = tuple(inspect.signature(self._model.forward).parameters)
        return self._names

    def _current_state(self) -> bool:
        """Parameters and buffers as they are now; False where a module has hooks."""
        if self._unchanged is not None and self._unchanged():
            return not self._live.has_hooks()
        if self._live is None or not self._live.is_current():
            self._live, self._kinds = export_.LiveState(self._model), {}
        self._state, self._layouts = self._live.tensors(), None
        if any(tensor is None for tensor in self._state):
            self._live = None
            return False
        self._unchanged = self._watch(self._options, *self._live.watched(), self._state)
        self._training = tuple(self._live.training())
        return not self._live.has_hooks()

    # -- what serves it

    def _call(self, inputs: Inputs, tokens: torch.Tensor):
        new, layers, cache = tokens.shape[1], _layers(), inputs.cache
        if not layers.is_known(cache):
            return PASS
        store = layers.store_of(cache)
        if store is None and layers.is_empty(cache):
            return self._first(inputs, tokens) if layers.takes_first_states(cache) else PASS
        store = store or layers.hold(cache, self._pool, new)
        return self._in_eager(inputs) if store is None else self._grow(inputs, store, new)

    def _first(self, inputs: Inputs, tokens: torch.Tensor):
        """An empty cache. One token is a step, if the sizes of the layers are known."""
        layers, cache = _layers(), inputs.cache
        if tokens.shape[1] == 1 and layers.has_states(cache):
            return self._in_eager(inputs, silent=True)
        if tokens.shape[1] > 1 or not layers.steps_when_empty(cache):
            return self._prefill(inputs)
        if self._layouts is None:
            result = self._in_eager(inputs, silent=True)
            self._layouts = layers.layouts_of(cache)
            return result
        layers.initialise(cache, self._layouts, tokens.shape[0])
        store = layers.hold(cache, self._pool, 1)
        return self._in_eager(inputs) if store is None else self._grow(inputs, store, 1)

    def _prefill(self, inputs: Inputs):
        layers = _layers()
        program = self._program(inputs, None)
        if program is None:
            return self._in_eager(inputs, silent=True) if layers.has_states(inputs.cache) else PASS
        flat = program(self._state, list(inputs.tensors.values()), _NOTHING)
        layers.fill(inputs.cache, program.states, program.first_states(flat))
        self._layouts = layers.layouts_of(inputs.cache)
        return program.returned(flat, inputs.cache)

    def _grow(self, inputs: Inputs, store: Store, new: int):
        mask = inputs.tensors.get(inputs.mask)
        seen = mask.shape[1] - store.length if mask is not None and mask.dim() == 2 else 0
        store.reserve(max(new, seen))
        result = self._step(inputs, store.room)
        if result is PASS:
            _layers().give_up(store)
        else:
            store.length += new
        return result

    def _step(self, inputs: Inputs, room: Room):
        mask = inputs.tensors.get(inputs.mask)
        if mask is not None and mask.dim() == 2:
            if mask.shape[0] != room.mask.shape[0] or mask.shape[1] > room.mask.shape[1]:
                return PASS
            room.set_mask(mask)
            tensors = {name: t for name, t in inputs.tensors.items() if name != inputs.mask}
            inputs = replace(inputs, tensors=tensors, masked=True)
        program = self._program(inputs, room)
        if program is None:
            return PASS
        given, kept = list(inputs.tensors.values()), room.held(inputs.masked)
        return program.returned(program(self._state, given, kept), inputs.cache)

    def _program(self, inputs: Inputs, room: Room | None):
        """The one for this call, captured if there is none. None: there can be none."""
        last = self._last
        sizes = inputs.sizes(), torch.are_deterministic_algorithms_enabled()
        if room is not None and last[0] is room and last[1] is self._state and last[2] == sizes:
            return last[3]
        program = self._found(inputs, room)
        if room is not None and program is not None:
            self._last = room, self._state, sizes, program
        return program

    def _found(self, inputs: Inputs, room: Room | None):
        tokens = next(iter(inputs.tensors.values()))
        layers = _layers().kinds(inputs.cache) if room is None else room.kinds()
        repeats = torch.are_deterministic_algorithms_enabled()
        key = (inputs.key(), self._training, repeats, room is None, tokens.shape[1] == 1, layers)
        kind = self._kinds.get(key)
        if kind is None:
            eager = room is None and _layers().has_states(inputs.cache)
            otherwise = _PROMPTS_IN_EAGER if eager else _THROUGH_DYNAMO
            kind = self._kinds.setdefault(key, _Kind(otherwise))
        given = list(inputs.tensors.values())
        given += room.held(inputs.masked) if room is not None else ()
        program = kind.accepting(given)
        if program is not None or kind.refused:
            return program
        with self._gate.tracing():  # another thread may have traced while this one waited
            program = kind.accepting(given)
            if program is not None or kind.refused:
                return program
            return self._captured(kind, inputs, room)

    def _captured(self, kind: _Kind, inputs: Inputs, room: Room | None):
        if sum(len(each.programs) for each in self._kinds.values()) >= _MOST_KINDS:
            return self._refuse(kind, f"more than {_MOST_KINDS} kinds of calls")
        try:
            program = _traced().capture(
                self._model, inputs, room, self._options, self._compile_graph, self._on_compiled
            )
        except Exception as error:
            return self._refuse(kind, one_line(error))
        kind.programs.append(program)
        return program

    def _refuse(self, kind: _Kind, why: str) -> None:
        kind.refused = True
        name = type(self._model).__name__
        events.warn_once(f"cache:{name}:{why}", f"{name}: {kind.otherwise}: {why}")

    def _in_eager(self, inputs: Inputs, silent: bool = False):
        """The call as it is, with one warning where that is for its kind of cache."""
        if not silent:
            of_caches = _layers().kinds(inputs.cache)
            kinds = ", ".join(sorted({kind.__name__ for kinds in of_caches for kind in kinds}))
            name = type(self._model).__name__
            message = f"{name}: steps with a cache of {kinds} run unfused"
            events.warn_once(f"cache:{name}:{kinds}", message)
        arguments = inputs.arguments(inputs.tensors)
        return self._model(**arguments, **{inputs.cache_name: inputs.cache})


_NOTHING: list[torch.Tensor] = []


def _layers() -> ModuleType:
    """Imported where transformers is."""
    from torchweld.capture.decoding import layers

    return layers


def _traced() -> ModuleType:
    from torchweld.capture.decoding import traced

    return traced
