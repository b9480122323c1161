"""Is a fused model as exact as the original? Both are run, and measured against the model in
float64."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from html import escape  # of a notebook
from typing import Any

import torch
from torch import Tensor, nn

from torchweld.core.dtypes import torch_name
from torchweld.core.errors import one_line
from torchweld.exact.budget import (
    CONTRACT,
    Budget,
    TensorError,
    as_real_numbers,
    judge,
    measure,
    pool,
)
from torchweld.exact.trees import as_arguments, map_tensors, tensors
from torchweld.exact.wide import widened, with_epsilons
from torchweld.runtime.index_flags import raise_if_any_set

NUDGES = 3


def _unchanged(call: Callable) -> Callable:
    return call


_ORACLES: tuple[tuple[torch.dtype, Callable[[Callable], Callable]], ...] = (
    (torch.float64, partial(widened, halves=True)),
    (torch.float64, widened),
    (torch.float64, _unchanged),
    (torch.float32, _unchanged),
)
_COLUMNS = ("eager rel L2", "fused rel L2", "eager max", "fused max")


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """Errors of each output, gradient and changed buffer, over all seeds. `oracle`: what they are
    compared with, "float64", "float32" or "eager". `ok`: all are within the budget."""

    errors: tuple[TensorError, ...]
    oracle: str
    notes: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether every tensor is within the budget."""
        return all(e.ok for e in self.errors)

    @property
    def worst(self) -> TensorError | None:
        """The tensor that breaks the contract, else the one with the largest error of fused
        relative to eager's."""
        return max(self.errors, key=_badness, default=None)

    def _repr_html_(self) -> str:
        return f"<pre>{escape(str(self))}</pre>"

    def __str__(self) -> str:
        verdict = "within the error budget" if self.ok else "OUTSIDE the error budget"
        lines = [f"{verdict}: {len(self.errors)} tensors against {self.oracle}"]
        lines.append(f"{'':32}" + "".join(f"{c:>14}" for c in _COLUMNS))
        for error in sorted(self.errors, key=_badness, reverse=True)[:20]:
            numbers = (error.eager_l2, error.fused_l2, error.eager_max, error.fused_max)
            cells = "".join(f"{n:14.2e}" for n in numbers)
            lines.append(f"{error.name[-32:]:32}{cells}  {error.reason}".rstrip())
        return "\n".join([*lines, *self.notes])


def verify(
    model: Callable[..., Any],
    fused: Callable[..., Any],
    example_inputs: Any,
    *,
    train: bool = False,
    seeds: Sequence[int] = (0, 1, 2),
    budget: Budget = CONTRACT,
) -> VerifyReport:
    """Runs `model` in eager, `fused`, and `model` in float64. Reports the errors of the first two
    against the third.

    `example_inputs`: a tensor, a tuple of arguments, a dict of keyword arguments, or (tuple, dict),
    of any shapes and dtypes that the model takes. The first of `seeds` uses them as they are. The
    others use normal random numbers with the same mean and deviation. If no input has floats
    (token ids), weights differ in the last bit instead.

    `train`: also compare the gradients of parameters and of floating-point inputs. `budget`: how
    large errors may be. Dropout is off during the comparison.

    Gradients and buffers of the model are not changed. Weights that were varied are set back.
    Errors: IndexOutOfRange if an index was out of range on a GPU, in this call or an earlier one.
    """
    with dropout_off(model, fused) as silenced:
        notes = [f"dropout is off in this comparison: {', '.join(silenced)}"] if silenced else []
        return _verified(model, fused, example_inputs, train, seeds, budget, notes)


def _verified(
    model: Callable, fused: Callable, example_inputs, train: bool, seeds, budget: Budget,
    notes: list[str],
) -> VerifyReport:  # fmt: skip
    oracle, precision, found = _oracle(model, example_inputs)
    notes = [*notes, *found]
    runs = _Runs(model, fused, oracle, precision, train, budget.bitwise)
    vary_weights = not any(t.is_floating_point() for t in tensors(example_inputs).values())
    measured: dict[str, list[TensorError]] = {}
    for seed in seeds:
        with runs.nudged_weights(seed) if vary_weights and seed else nullcontext():
            for name, error in runs.errors(_vary(example_inputs, seed), seed):
                measured.setdefault(name, []).append(error)
    raise_if_any_set()
    errors = {name: judge(pool(found), budget) for name, found in measured.items()}
    if oracle is not None and not budget.bitwise and not all(e.ok for e in errors.values()):
        outside = {name for name, error in errors.items() if not error.ok}
        for seed in seeds:
            for name, error in runs.nudged(_vary(example_inputs, seed), seed, outside):
                measured[name].append(error)
        errors |= {name: judge(pool(measured[name]), budget) for name in outside}
    dtype = precision(torch.zeros(())).dtype
    name = "eager" if oracle is None else torch_name(dtype)
    return VerifyReport(tuple(errors.values()), name, tuple(notes))


@dataclass(frozen=True, slots=True)
class _Runs:
    """The three that are compared. `oracle`: None compares with eager."""

    model: Callable
    fused: Callable
    oracle: Callable | None
    precision: Callable
    train: bool
    bitwise: bool

    def errors(self, inputs, seed: int) -> Iterator[tuple[str, TensorError]]:
        """Of each output, by name; of buffers, those that eager or the fused model changes."""
        eager, got = (_run(call, inputs, self.train, seed) for call in (self.model, self.fused))
        exact = eager
        if self.oracle is not None:
            exact = _run(self.oracle, map_tensors(self.precision, inputs), self.train, seed)
        buffers = _buffers(self.model)  # set back by now
        for name, tensor in eager.items():
            mine = got.get(name)
            if name not in buffers or _changed(buffers[name], tensor, mine):
                yield name, _measure(name, mine, tensor, exact.get(name), self.bitwise)

    def nudged(self, inputs, seed: int, names: Set[str]) -> Iterator[tuple[str, TensorError]]:
        """More samples for outputs that seem to be outside the contract: a gradient behind
        thousands of relus has errors of a few flipped ones, of any size, and a loss is a single
        number. All three run on inputs and weights that differ in the last bit."""
        for number in range(NUDGES):
            near = map_tensors(lambda t, n=number: _nudged(t, n), inputs)
            with self.nudged_weights(NUDGES * seed + number):
                found = dict(self.errors(near, seed))
            yield from ((name, found[name]) for name in names & found.keys())

    def nudged_weights(self, seed: int) -> AbstractContextManager:
        return _nudged_weights((self.model, self.fused, self.oracle), seed)


@contextmanager
def _nudged_weights(calls: Sequence[Callable | None], seed: int) -> Iterator[None]:
    """Within, parameters of the first of `calls` differ in the last bit, and with them those of the
    others that are equal to its."""
    first, *others = (_parameters(call) for call in calls)
    before = {name: p.detach().clone() for name, p in first.items()}
    changed = list(first.items()) + [
        (name, p)
        for other in others
        for name, p in other.items()
        if name in before and p is not first[name] and torch.equal(p, before[name].to(p.dtype))
    ]
    try:
        with torch.no_grad():
            for name, parameter in changed:
                parameter.copy_(_nudged(before[name], seed))
        yield
    finally:
        with torch.no_grad():
            for name, parameter in changed:
                parameter.copy_(before[name])


def _parameters(call: Callable | None) -> dict[str, Tensor]:
    """The floating ones by name, empty for what is no module."""
    named = call.named_parameters() if isinstance(call, nn.Module) else ()
    return {name: p for name, p in named if p.is_floating_point()}


def _oracle(model: Callable, example_inputs) -> tuple[Callable | None, Callable, list[str]]:
    """A copy of the model in the highest precision that it runs in, and what brings inputs
    there: first with all float32 in it wide, too, for else positions that it makes itself are as
    rough as eager's, and judge what follows them. A result that is NaN there and a number in eager
    can judge nothing."""
    notes: list[str] = []
    eager = _run(model, example_inputs, False, 0)
    same = _unchanged if _has_float64(model, example_inputs) else with_epsilons
    for dtype, change in _ORACLES:
        precision = _to(dtype)
        try:
            oracle = _copy(model, dtype, lambda call, change=change: same(change(call)))
            found = _run(oracle, map_tensors(precision, example_inputs), False, 0)
            if lost := next((n for n, t in found.items() if _is_lost(t, eager.get(n))), None):
                raise ArithmeticError(f"{lost} has NaN where eager has none")
            return oracle, precision, notes if dtype == torch.float32 else []
        except Exception as error:  # whatever a model does with a dtype that it was not written for
            notes.append(f"no {torch_name(dtype)} oracle: {one_line(error)}")
    return None, _to(None), notes


def _has_float64(model: Callable, example_inputs) -> bool:
    own = (*model.parameters(), *model.buffers()) if isinstance(model, nn.Module) else ()
    return any(t.dtype == torch.float64 for t in (*own, *tensors(example_inputs).values()))


def _is_lost(tensor: Tensor, eager: Tensor | None) -> bool:
    same = eager is not None and eager.shape == tensor.shape
    return same and bool((tensor.isnan() & ~eager.isnan()).any())


def _copy(model: Callable, dtype: torch.dtype, change: Callable[[Callable], Callable]) -> Callable:
    """`change`: of what the model calls, where it names floating dtypes itself."""
    if not isinstance(model, nn.Module):
        return change(model)
    copied = copy.deepcopy(model)._apply(_to(dtype))
    copied.forward = change(copied.forward)
    return copied


def _to(dtype: torch.dtype | None) -> Callable[[Tensor], Tensor]:
    def precision(tensor: Tensor) -> Tensor:
        if dtype and tensor.is_complex():
            return tensor.to(dtype.to_complex())
        return tensor.to(dtype) if dtype and tensor.is_floating_point() else tensor

    return precision


def _vary(example_inputs, seed: int):
    """The inputs themselves for seed 0; else other floats of the same mean and deviation."""
    if seed == 0:
        return example_inputs
    generator = torch.Generator().manual_seed(seed)

    def varied(tensor: Tensor) -> Tensor:
        if not tensor.is_floating_point() or tensor.numel() < 2:
            return tensor
        values = torch.randn(tensor.shape, generator=generator, dtype=torch.float64).to(
            tensor.device
        )
        wide = tensor.detach().double()
        finite = wide[wide.isfinite()]
        if finite.numel() < 2:
            return tensor
        return torch.where(wide.isfinite(), values * finite.std() + finite.mean(), wide).to(
            tensor.dtype
        )

    return map_tensors(varied, example_inputs)


def _nudged(tensor: Tensor, seed: int) -> Tensor:
    """Each float one or two units in the last place up or down; other types as they are."""
    if not tensor.is_floating_point():
        return tensor
    generator = torch.Generator(tensor.device).manual_seed(seed)
    up = torch.rand(tensor.shape, generator=generator, device=tensor.device) < 0.5
    step = torch.where(up, 1.0, -1.0).double() * torch.finfo(tensor.dtype).eps
    return (tensor.double() * (1 + step)).to(tensor.dtype)


def _buffers(call: Callable) -> dict[str, Tensor]:
    named = call.named_buffers() if isinstance(call, nn.Module) else ()
    return {f"buffer {name}": buffer for name, buffer in named}


def _changed(before: Tensor, *after: Tensor | None) -> bool:
    """A rounded mean may stay as it was in one of two that are both right."""
    return any(tensor is not None and not _same(tensor, before) for tensor in after)


def _run(call: Callable, example_inputs, train: bool, seed: int) -> dict[str, Tensor]:
    """Outputs, buffers as they are afterwards and, if `train`, gradients, by name."""
    held = _buffers(call)
    before = {name: b.detach().clone() for name, b in held.items()}
    inputs = map_tensors(lambda t: _leaf(t, train), example_inputs)
    args, kwargs = as_arguments(inputs)
    torch.manual_seed(seed)
    try:
        with torch.set_grad_enabled(train):
            outputs = tensors(call(*args, **kwargs))
        found = {k: v.detach().clone() for k, v in outputs.items()}
        after = {name: buffer.detach().clone() for name, buffer in held.items()}
        return found | after | (_gradients(call, inputs, outputs) if train else {})
    finally:
        with torch.no_grad():
            for name, buffer in held.items():
                if not _same(buffer, before[name]):  # nothing can be written to an expanded one
                    buffer.copy_(before[name])


def _leaf(tensor: Tensor, train: bool) -> Tensor:
    """A copy that the call may change, with the same strides."""
    fresh = tensor.detach().clone()
    numbers = tensor.is_floating_point() or tensor.is_complex()
    return fresh.requires_grad_() if train and numbers else fresh


def _same(a: Tensor, b: Tensor) -> bool:
    a, b = as_real_numbers(a), as_real_numbers(b)
    return torch.equal(a, b) or bool(
        a.is_floating_point()
        and (a.isnan() == b.isnan()).all()
        and torch.equal(a.nan_to_num(), b.nan_to_num())
    )


def _gradients(call: Callable, inputs, outputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Of a fixed random combination of the outputs, with respect to parameters and floating
    inputs."""
    targets = {f"gradient of input {k}": t for k, t in tensors(inputs).items() if t.requires_grad}
    if isinstance(call, nn.Module):
        targets |= {f"gradient of {n}": p for n, p in call.named_parameters() if p.requires_grad}
    generator = torch.Generator().manual_seed(0)
    loss, weights = [], []
    for output in outputs.values():
        if output.requires_grad:
            loss.append(as_real_numbers(output))
            weight = torch.randn(loss[-1].shape, generator=generator).to(torch.bfloat16)
            weights.append(weight.to(output.device, loss[-1].dtype))
    if not loss or not targets:
        return {}
    grads = torch.autograd.grad(loss, list(targets.values()), weights, allow_unused=True)
    return {n: g.detach() for n, g in zip(targets, grads) if g is not None}


def _measure(name: str, fused: Tensor | None, eager: Tensor, oracle: Tensor | None, bitwise: bool):
    if fused is not None and oracle is not None:
        return measure(name, fused, eager, oracle, bitwise)
    reason = f"missing from {'the fused model' if fused is None else 'the oracle'}"
    return TensorError(name, str(eager.dtype), tuple(eager.shape), reason=reason)


@contextmanager
def dropout_off(*models: Callable) -> Iterator[list[str]]:
    """Within, dropout layers drop nothing: eager and fused draw other numbers, so that with them a
    comparison means nothing. Gives the names of a few of those that would drop."""
    named = [pair for m in models if isinstance(m, nn.Module) for pair in m.named_modules()]
    active = [(n, m) for n, m in named if m.training and _chance(m)]
    chances = [(layer, layer.p) for _, layer in active]
    names = list(dict.fromkeys(name for name, _ in active))
    try:
        for layer, _ in chances:
            layer.p = 0.0
        yield names[:3] + (["..."] if len(names) > 3 else [])
    finally:
        for layer, p in chances:
            layer.p = p


def _chance(layer: nn.Module) -> float:
    """Of dropping; 0 for a module that is only named after a dropout inside it."""
    found = getattr(layer, "p", 0.0) if "Dropout" in type(layer).__name__ else 0.0
    return found if isinstance(found, (int, float)) else 0.0


def draws(model: Callable, example_inputs) -> bool:
    """Whether two calls that differ in the seed alone give other results."""
    with torch.random.fork_rng():
        one, other = (_run(model, example_inputs, False, seed) for seed in (0, 1))
    return any(not _same(one[name], other[name]) for name in one.keys() & other.keys())


def _badness(error: TensorError) -> tuple:
    return bool(error.reason), error.fused_l2 / error.eager_l2 if error.eager_l2 else error.fused_l2
