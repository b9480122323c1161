"""Compiled at the first use: one program for a kind of inputs, found again by their sizes.

The first sizes of a kind (types, devices, layouts) get a program of their own, of some operators
the first few. Then sizes that have differed so far are symbols. Where that is not possible (a size
of 0 or 1, a guard that does not hold) sizes get their own again, up to MAX_EXACT of them; later
ones run in eager.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, partial

import torch

from torchweld.capture import aot, function
from torchweld.capture.decoding.traced import Sizes
from torchweld.core import events
from torchweld.core.errors import one_line
from torchweld.core.options import Options
from torchweld.fused.graphs import remember
from torchweld.fused.later import compile_graph, takes

MAX_EXACT = 32
_MAX_READY = 4096
Tensors = Sequence[torch.Tensor]
Run = Callable[[Tensors], list]


@dataclass
class _Kind:
    """`varying`: for each tensor the dimensions that have differed from `first`."""

    first: list[torch.Size]
    varying: list[frozenset[int]]
    exact: int = 0
    symbolic: list[tuple[Sizes, Run]] = field(default_factory=list)

    def widen(self, tensors: Tensors) -> None:
        for n, (old, tensor) in enumerate(zip(self.first, tensors)):
            self.varying[n] |= {d for d, s in enumerate(tensor.shape) if s != old[d]}

    def may_be_symbols(self, tensors: Tensors) -> bool:
        sizes = [t.shape[d] for t, dims in zip(tensors, self.varying) for d in dims]
        return bool(sizes) and min(sizes) > 1


class Programs:
    """Those of one function, in one form (`capture.function`), with gradients of the tensors that
    are `wanted`. Called with the tensors, then for "gradients" with the tangents; gives a list:
    results, then the gradients that are wanted. `exact_first`: so many sets of sizes get a program
    of their own before sizes are symbols."""

    def __init__(
        self, name: str, of: function.Function, form: function.Form, wanted: tuple[bool, ...],
        exact_first: int = 1,
    ) -> None:  # fmt: skip
        self._name, self._function, self._form, self._wanted = name, of, form, wanted
        self._exact_first = exact_first
        self._ready: dict[tuple, Run] = {}
        self._exact: dict[tuple, Run] = {}
        self._kinds: dict[tuple, _Kind] = {}
        self._lock = threading.RLock()

    def __call__(self, tensors: list[torch.Tensor], tangents: Tensors = ()) -> list:
        tensors = [t.resolve_neg() for t in tensors]  # as values are, not as they lie in memory
        key = tuple([(t.dtype, t.device, t.shape, t.stride()) for t in tensors])
        run = self._ready.get(key)
        if run is None:
            run = self._prepare(key, tensors)
        return run([*tensors, *[t.resolve_neg().contiguous() for t in tangents]])

    def _prepare(self, key: tuple, tensors: Tensors) -> Run:
        with self._lock:
            run = self._exact.get(key) or self._found(key, tensors)
            if len(self._ready) >= _MAX_READY:
                self._ready.clear()
            self._ready[key] = run
        return run

    def _found(self, key: tuple, tensors: Tensors) -> Run:
        orders = tuple(map(_order, tensors))
        kind_key = tuple([(*k[:2], t.dim(), o) for k, t, o in zip(key, tensors, orders)])
        kind = self._kinds.get(kind_key)
        if kind is None:
            kind = _Kind([t.shape for t in tensors], [frozenset()] * len(tensors))
            self._kinds[kind_key] = kind
        kind.widen(tensors)
        if kind.exact < self._exact_first:
            return self._compile_exact(key, kind, tensors)
        shapes = tuple([t.shape for t in tensors])
        run = next((run for sizes, run in kind.symbolic if sizes.fit(shapes)), None)
        if run is None and kind.may_be_symbols(tensors) and len(kind.symbolic) < MAX_EXACT:
            run = self._compile_symbolic(kind, orders, tensors)
        elif run is None:
            return self._compile_exact(key, kind, tensors)
        return _in_order(run, orders)

    def _compile_exact(self, key: tuple, kind: _Kind, tensors: Tensors) -> Run:
        kind.exact += 1
        if kind.exact > MAX_EXACT:
            message = f"{self._name} runs in eager for more than {MAX_EXACT} sets of sizes"
            events.warn_once(f"operator:{self._name}:{self._form}", message)
            return self._eager
        self._exact[key] = self._compiled(tensors, ())[0]
        return self._exact[key]

    def _compile_symbolic(self, kind: _Kind, orders: tuple, tensors: Tensors) -> Run:
        dense = [t if o is not None else t.contiguous() for t, o in zip(tensors, orders)]
        run, fakes = self._compiled(dense, kind.varying)
        kind.symbolic.append((Sizes(fakes), run))
        return run

    def _compiled(self, tensors: Tensors, varying: Sequence) -> tuple[Run, Tensors]:
        try:
            traced = function.trace(
                self._function, tensors, self._form, self._wanted, varying, self._name,
                partial(takes, _options()),
            )
        except Exception as error:
            message = f"{self._name} was not traced and runs in eager: {one_line(error)}"
            events.warn_once(f"operator:{self._name}:{one_line(error)}", message)
            return self._eager, tensors
        run = aot.compile_or_run_eagerly(compile_graph, traced.captured, _options(), remember)
        return self._bound(run, traced), traced.fakes

    def _bound(self, run: aot.Boxed, traced: function.Traced) -> Run:
        sizes = traced.sizes
        missing = [n for n, (w, g) in enumerate(zip(self._wanted, traced.given)) if w and not g]
        if not sizes and not missing:
            return lambda tensors: run(list(tensors))

        def called(tensors: Tensors) -> list:
            made = list(run([*[tensors[t].shape[d] for t, d in sizes], *tensors]))
            before = len(made) - sum(traced.given)
            for n in missing:
                made.insert(before + sum(self._wanted[:n]), torch.zeros_like(tensors[n]))
            return made

        return called

    def _eager(self, tensors: Tensors) -> list:
        return function.run(self._function, tensors, self._form, self._wanted)


@cache
def _options() -> Options:
    """A single operator is no step worth a CUDA graph: the user's own may record it."""
    return Options(cuda_graphs=False)


def _order(tensor: torch.Tensor) -> tuple[int, ...] | None:
    """The dimensions from outermost to innermost of a tensor without gaps; None for others."""
    stride = tensor.stride()
    order = sorted(range(tensor.dim()), key=lambda d: -stride[d])
    expected = 1
    for d in reversed(order):
        if stride[d] != expected:
            return None
        expected *= tensor.shape[d]
    return tuple(order)


def _in_order(run: Run, orders: tuple) -> Run:
    """`run`, given contiguous copies of tensors with gaps."""
    if None not in orders:
        return run
    gaps = [n for n, order in enumerate(orders) if order is None]

    def called(tensors: Tensors) -> list:
        dense = list(tensors)
        for n in gaps:
            dense[n] = dense[n].contiguous()
        return run(dense)

    return called
