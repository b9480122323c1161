"""An operator of the table as torch knows it: `torch.ops.torchweld.NAME`.

Beside it stand its gradient, `NAME_backward(tangents, arguments, wanted)`, and for losses
`NAME_ahead(arguments, wanted)`: the loss with its gradients. Each is opaque to torch.compile, has a
fake, and is compiled at its first call with real tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import torch

from torchweld.capture.inline import MEANINGS
from torchweld.operators.programs import Programs
from torchweld.operators.table import Operator

Wanted = Sequence[bool]
_MAX_CONSTANTS = 256  # sets of arguments that are no tensors, for which programs are kept


def define(operator: Operator, namespace: str = "torchweld") -> Callable[..., Any]:
    """Registers it with torch; what is called for the user."""
    made = _Defined(operator, namespace)
    made.register()
    return made.overload("")


class _Defined:
    def __init__(self, operator: Operator, namespace: str) -> None:
        self.operator, self.name = operator, f"{namespace}::{operator.name}"
        self._places = [n for n, k in enumerate(operator.kinds) if k.startswith("Tensor")]
        self._programs = lru_cache(maxsize=_MAX_CONSTANTS)(self._new_programs)

    def overload(self, suffix: str) -> Any:
        namespace, name = (self.name + suffix).split("::")
        return getattr(getattr(torch.ops, namespace), name).default

    # -- the arguments of a call: tensors, and what is left when they are taken out

    def _split(self, args: Sequence) -> tuple[list[torch.Tensor], tuple]:
        tensors = [args[n] for n in self._places if args[n] is not None]
        rest = tuple(
            isinstance(a, torch.Tensor) if n in self._places else a for n, a in enumerate(args)
        )
        return tensors, rest

    def _join(self, tensors: Sequence[torch.Tensor], rest: tuple) -> list:
        given = iter(tensors)
        return [
            (next(given) if a else None) if n in self._places else a for n, a in enumerate(rest)
        ]

    def _new_programs(self, form, rest: tuple, wanted: tuple[bool, ...]) -> Programs:
        def flat(*tensors: torch.Tensor) -> Sequence[torch.Tensor]:
            made = self._meaning(*self._join(tensors, rest))
            return [made] if self.operator.is_single else made

        return Programs(self.operator.name, flat, form, wanted, self.operator.exact_sizes)

    # -- what torch is given

    def register(self) -> None:
        inside, _, results = self.operator.schema[1:].partition(") -> ")
        self._register("", f"({inside}) -> {results}", self._results, self._fake)
        self._differentiate("", self._backward, self._keep)
        MEANINGS[self.overload("")] = self._meaning
        schema = f"(Tensor[] tangents, {inside}, bool[] wanted) -> Tensor[]"
        self._register("_backward", schema, self._gradients, self._fake_gradients)
        if self.operator.ahead:
            schema = f"({inside}, bool[] wanted) -> Tensor[]"
            self._register("_ahead", schema, self._ahead, self._fake_ahead)
            self._differentiate("_ahead", self._scale, self._keep_gradients)
            MEANINGS[self.overload("_ahead")] = lambda *args: [self._meaning(*args[:-1])]

    def _register(self, suffix: str, schema: str, function: Callable, fake: Callable) -> None:
        """As torch.library.custom_op does, whose checks of each call take as long as all else (a
        norm forward and backward: 270 us with them, 210 without)."""
        name = self.name + suffix
        torch.library.define(name, schema, tags=(torch.Tag.pt2_compliant_tag,))
        torch.library.impl(name, "CompositeExplicitAutograd", function)
        torch.library.register_fake(name, fake)

    def _differentiate(self, suffix: str, backward: Callable, keep: Callable) -> None:
        torch.library.register_autograd(self.name + suffix, backward, setup_context=keep)

    def _results(self, *args):
        tensors, rest = self._split(args)
        made = self._programs("results", rest, ())(tensors)
        return made[0] if self.operator.is_single else tuple(made)

    def _gradients(self, tangents, *args):
        *args, wanted = args
        tensors, rest = self._split(args)
        return self._programs("gradients", rest, tuple(wanted))(tensors, tangents)

    def _ahead(self, *args):
        *args, wanted = args
        tensors, rest = self._split(args)
        return self._programs("ahead", rest, tuple(wanted))(tensors)

    # -- fakes: what it means, on tensors without data

    def _meaning(self, *args):
        """No autocast: an operator means the same wherever it is called."""
        with torch.autocast("cpu", enabled=False), torch.autocast("cuda", enabled=False):
            return self.operator.reference(*args)

    def _fake(self, *args):
        made = self._meaning(*args)
        if self.operator.is_single:
            return made.contiguous()
        return tuple(t.contiguous() for t in made)

    def _fake_gradients(self, tangents, *args):
        *args, wanted = args
        return [_empty_like(t) for t, w in zip(self._split(args)[0], wanted) if w]

    def _fake_ahead(self, *args):
        return [self._fake(*args[:-1]), *self._fake_gradients((), *args)]

    # -- autograd

    def _keep(self, ctx, inputs, output) -> None:
        tensors, ctx.rest = self._split(inputs)
        ctx.save_for_backward(*tensors)

    def _backward(self, ctx, *tangents):
        args = self._join(ctx.saved_tensors, ctx.rest)
        asked = [ctx.needs_input_grad[n] for n in self._places if args[n] is not None]
        is_one = self.operator.adds and all(asked[:2]) and _are_alike(*args[:2])
        if is_one:
            asked[1] = False
        made = self.overload("_backward")(list(tangents), *args, asked)
        gradients = self._spread(made, asked, args)
        return (gradients[0], gradients[0], *gradients[2:]) if is_one else gradients

    def _keep_gradients(self, ctx, inputs, output) -> None:
        ctx.set_materialize_grads(False)  # nobody asks for those of gradients
        *args, ctx.wanted = inputs
        ctx.given = [n for n in self._places if args[n] is not None]
        ctx.count = len(inputs)
        ctx.save_for_backward(*output[1:])

    def _scale(self, ctx, tangents):
        made = iter(ctx.saved_tensors)
        gradients: list = [None] * ctx.count
        for place, is_wanted in zip(ctx.given, ctx.wanted):
            if is_wanted:
                gradient = next(made)
                gradients[place] = (gradient * tangents[0]).to(gradient.dtype)
        return tuple(gradients)

    def _spread(self, made: Sequence[torch.Tensor], asked: Wanted, args: list) -> tuple:
        """A gradient or None for each argument."""
        gradients, found = iter(made), iter(asked)
        return tuple(
            next(gradients) if n in self._places and a is not None and next(found) else None
            for n, a in enumerate(args)
        )


def _are_alike(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype


def _empty_like(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(tensor, memory_format=torch.contiguous_format)
