"""From Dynamo's call to a compiled graph with little between, in training by one
`torch.autograd.Function`.

AOTAutograd's own callable looks in each call after what most graphs do not have: results that are
views of inputs, mutations that autograd sees, subclasses of tensors, tokens of effects. A small
step waits for that longer than for its kernels. Calls of a graph that has none of it go past. A
first training step goes AOTAutograd's way, which compiles the backward.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from torchweld.capture import torch_private
from torchweld.capture.torch_private import Plain, Tangent

Boxed = Callable[[list], Sequence]


class Switch:
    """A callable of a graph's flat inputs: `careful`, AOTAutograd's, until there is a `quick`
    one. `needs_grad`: that one has gradients, and calls without them are not for it."""

    def __init__(self, careful: Callable, quick: Callable | None = None) -> None:
        self._careful, self.quick, self.needs_grad = careful, quick, False

    def __call__(self, *args):
        quick = self.quick
        if (
            quick is None
            or torch_private.is_transformed()
            or (self.needs_grad and not torch.is_grad_enabled())
        ):
            return self._careful(*args)
        return quick(*args)


def quick_call(compiled: Boxed, autocast: bool) -> Callable:
    """A callable of a graph's flat inputs, without gradients. `autocast`: it was on in the
    trace, and is in the graph."""
    if autocast:
        compiled = _without_autocast(compiled)

    def call(*args):
        if not torch.is_grad_enabled():
            return compiled(list(args))
        with torch.no_grad():
            return compiled(list(args))

    return call


def _without_autocast(compiled: Boxed) -> Boxed:
    def run(args: list) -> Sequence:
        with torch_private.without_autocast():
            return compiled(args)

    return run


def quick_step(plain: Plain, forward: Boxed, backward: Boxed) -> Callable:
    """A callable of a graph's flat inputs, with gradients. `forward` gives the results, then what
    is kept: tensors, and after them numbers. `backward` takes the numbers, the tensors, and the
    gradients of the results, and gives one gradient, or None, for each input. Both are called with
    as little around them as can be: right after a kernel Python's code is in no cache."""
    results, opaque, unsafe_views = plain.results, plain.opaque, plain.unsafe_views
    tangents, numbers = plain.tangents, plain.numbers
    not_deterministic = plain.deterministic is False
    if plain.autocast:
        forward, backward = _without_autocast(forward), _without_autocast(backward)
    run_forward, run_backward = forward, backward
    interpreter, is_deterministic = torch_private.interpreter, torch_private.is_deterministic

    class Step(torch.autograd.Function):
        boxed_grads_call = True  # gradients come in a list, which is emptied: they are freed early

        @staticmethod
        def forward(ctx, *args):
            found = list(run_forward(list(args)))
            end = len(found) - numbers
            if numbers:
                ctx.numbers = found[end:]
            kept, given = found[results:end], found[:results]
            for place, tensor in enumerate(kept):
                if tensor._is_view():
                    kept[place] = tensor.detach()
            ctx.save_for_backward(*kept)
            for place in unsafe_views:
                given[place] = torch.ops.aten._unsafe_view(given[place], given[place].shape)
            if opaque:
                ctx.mark_non_differentiable(*[given[place] for place in opaque])
                torch_private.make_no_zeros(ctx)
            return tuple(given)

        @staticmethod
        def backward(ctx, *grads):
            grads = grads[0] if torch_private.GRADS_COME_BOXED else list(grads)
            if interpreter() is not None or (not_deterministic and is_deterministic()):
                torch_private.refuse_backward()
            args = [*ctx.numbers, *ctx.saved_tensors] if numbers else list(ctx.saved_tensors)
            for tangent in tangents:
                grad = grads[tangent.position]
                if type(grad) is not Tensor or grad.stride() != tangent.strides:
                    grad = _conformed(grad, tangent)
                args.append(grad)
            grads.clear()
            grad = None
            if torch.is_grad_enabled():
                tensors = (a for a in args if isinstance(a, Tensor))
                return _Once.apply(run_backward, args, torch.empty(0, requires_grad=True), *tensors)
            ctx.maybe_clear_saved_tensors()
            return tuple(run_backward(args))

    return torch_private.bare_apply(Step)


def _conformed(grad: Tensor, tangent: Tangent) -> Tensor:
    """`grad` in the layout that the backward was traced with."""
    if type(grad) is not Tensor:
        raise RuntimeError(
            f"the backward of a compiled graph was given a {type(grad).__name__}, not a tensor; "
            "compiled autograd, if that is on, cannot take part in it"
        )
    if tangent.format is not None:
        return grad.contiguous(memory_format=tangent.format)
    if grad.shape == tangent.shape and grad.stride() == tangent.strides:
        return grad
    made = torch.empty_strided(tangent.shape, tangent.strides, dtype=grad.dtype, device=grad.device)
    return made.copy_(grad)


class _Once(torch.autograd.Function):
    """Gradients that belong to a graph, as `create_graph` asks, and have none of their own."""

    @staticmethod
    def forward(ctx, run: Boxed, args: list, *_):
        return tuple(run(args))

    @staticmethod
    def backward(ctx, *_):
        raise RuntimeError("a compiled graph does not support double backward: call the model "
                           "itself where gradients of gradients are wanted")  # fmt: skip
