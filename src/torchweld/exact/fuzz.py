"""The fuzzer: random programs, and the property that fused equals eager within the budget.

`programs()` is a hypothesis strategy, so failures shrink. Lines are drawn from a table of templates
and run as they are drawn, on the real inputs, so that shapes and dtypes are known; a line that
torch refuses is left out.

Discrete operations (comparisons, argmax, casts to integers) are only drawn for values that are the
same to the bit in any correct implementation: `exact` ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import torch
from hypothesis import strategies as st
from torch import Tensor

from torchweld.core.events import events
from torchweld.core.torch_private import without_modes
from torchweld.exact.budget import Budget, compare
from torchweld.exact.programs import Input, Program
from torchweld.exact.templates import FLOATS, TEMPLATES, Scope
from torchweld.exact.wide import with_epsilons

# One small tensor is one sample of an error, where the contract's ratios are about many: a wrong
# kernel is wrong by more.
BUDGET = Budget(relative=5, largest=10, terms=256)
SIZES = (1, 2, 3, 5, 7, 8, 9, 16, 17, 31, 33, 64, 65, 129, 257)
MOST_ELEMENTS = 140_000


@st.composite
def programs(draw, most_lines: int = 8) -> Program:
    """A program of up to `most_lines` operations on one to three inputs."""
    inputs = tuple(draw(_inputs()))
    scope = Scope(draw)
    for position, spec in enumerate(inputs):
        scope.values[f"x{position}"] = spec.make()
        scope.exact.add(f"x{position}")
    for _ in range(draw(st.integers(1, most_lines))):
        _draw_line(scope)
    made = [n for n in scope.values if n.startswith("v")]
    if not made:
        scope.lines.append("v0 = x0.clone()")
        scope.exact.add("v0")
        made = ["v0"]
    outputs = draw(st.lists(st.sampled_from(made), min_size=1, max_size=3, unique=True))
    if made[-1] not in outputs:
        outputs.append(made[-1])
    return Program(
        inputs, tuple(scope.lines), tuple(outputs), frozenset(scope.exact & set(outputs))
    )


@st.composite
def _inputs(draw) -> list[Input]:
    shape = draw(st.lists(st.sampled_from(SIZES), min_size=1, max_size=3).map(_small))
    if draw(st.integers(0, 15)) == 0:
        shape = (*shape[:-1], 0)
    dtype = draw(st.sampled_from(FLOATS))
    inputs = [draw(_input(shape, dtype))]
    for _ in range(draw(st.integers(0, 2))):
        other = draw(st.sampled_from((shape, shape[-1:], (*shape[:-1], 1), ())))
        kind = draw(st.sampled_from((dtype, dtype, torch.float32, torch.int64, torch.bool)))
        inputs.append(draw(_input(other, kind)))
    return inputs


def _small(shape: list[int]) -> tuple[int, ...]:
    """Without leading dimensions until it is below MOST_ELEMENTS."""
    return tuple(shape) if math.prod(shape) <= MOST_ELEMENTS else _small(shape[1:])


@st.composite
def _input(draw, shape: tuple[int, ...], dtype: torch.dtype) -> Input:
    layout = draw(st.sampled_from(("plain", "plain", "permuted", "expanded", "gaps")))
    values = draw(st.sampled_from(("normal", "normal", "offset", "hard")))
    return Input(shape, dtype, layout, values, draw(st.integers(0, 3)))


def _draw_line(scope: Scope) -> None:
    template = scope.choose(TEMPLATES)
    expression = template.draw(scope)
    value = scope.run(expression) if expression else None
    if value is None or value.numel() > MOST_ELEMENTS or value.dim() > 5:
        return
    name = f"v{len(scope.lines)}"
    read = [n for n in scope.values if n in _names(expression)]
    if template.keeps and all(n in scope.exact for n in read):
        scope.exact.add(name)
    scope.values[name] = value
    scope.lines.append(f"{name} = {expression}")


def _names(expression: str) -> set[str]:
    return set(compile(expression, "", "eval").co_names)


def differences(
    program: Program, fuse: Callable, budget: Budget = BUDGET, train: bool = False,
    device: str = "cpu",
) -> list[str]:
    """What is wrong with the fused program: empty if it is within the budget.

    `fuse(function)` returns a function to call with the same arguments. `train` also compares the
    gradients of the inputs. A kernel that fell back to eager counts as wrong. All of it runs on
    `device`.
    """
    inputs = _copies(program.make_inputs(), partial(Tensor.to, device=device))
    eager = results_of(program, program.function(device=device), inputs, train)
    oracle = exact_results_of(program, inputs, train, device)
    before = len(events())
    try:
        fused = results_of(program, fuse(program.function(device=device)), inputs, train)
        if device == "cuda":
            torch.cuda.synchronize()  # what a kernel did wrong is told here, not by the comparison
    except Exception as error:
        return [f"{type(error).__name__}: {error}"]
    found = [f"fell back: {event.message}" for event in events()[before:]]
    for name, expected in eager.items():
        bitwise = Budget(bitwise=True) if name in program.bitwise else budget
        found += _difference(name, fused[name], expected, oracle[name], bitwise)
    return found


def exact_results_of(
    program: Program, inputs: list[Tensor], train: bool, device: str
) -> dict[str, Tensor]:
    """As `results_of`, in float64."""
    exact = with_epsilons(program.function(exact=True, device=device))
    return results_of(program, exact, _wide(inputs), train)


def _wide(inputs: list[Tensor]) -> list[Tensor]:
    return _copies(inputs, lambda t: t.double() if t.is_floating_point() else t.clone())


def _copies(inputs: list[Tensor], copy: Callable = torch.clone) -> list[Tensor]:
    """With the same strides; those that share memory share it again."""
    memory: dict[int, Tensor] = {}
    found = []
    for tensor in inputs:
        storage = tensor.untyped_storage()
        place = (storage.nbytes() // tensor.element_size(),), (1,), 0
        if storage.data_ptr() not in memory or not storage.nbytes():
            memory[storage.data_ptr()] = copy(tensor.detach().as_strided(*place))
        flat = memory[storage.data_ptr()]
        found.append(flat.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset()))
    return found


def results_of(
    program: Program, call: Callable, inputs: list[Tensor], train: bool
) -> dict[str, Tensor]:
    """Outputs by name; gradients of float inputs as well where some output has one."""
    with torch.set_grad_enabled(train):
        leaves = [i.requires_grad_(train and i.is_floating_point()) for i in _copies(inputs)]
        found = dict(zip(program.outputs, call(*leaves)))
        if getattr(program, "writes", False):
            found |= {f"x{k} afterwards": leaf for k, leaf in enumerate(leaves)}
        ends = [t for t in found.values() if t.requires_grad]
        targets = {f"gradient of x{k}": t for k, t in enumerate(leaves) if t.requires_grad}
        if not ends or not targets:
            return found
        weights = [_weights(t) for t in ends]
        grads = torch.autograd.grad(ends, list(targets.values()), weights, allow_unused=True)
    return found | {n: g for n, g in zip(targets, grads) if g is not None}


def _weights(output: Tensor) -> Tensor:
    """The same for eager, fused and float64: of several signs, so that no gradient vanishes."""
    with without_modes():
        weights = torch.arange(output.numel(), device=output.device).mul(1.7).cos()
        return weights.to(torch.bfloat16).to(output.dtype).view(output.shape)


def _difference(
    name: str, fused: Tensor, eager: Tensor, oracle: Tensor, budget: Budget
) -> list[str]:
    reason = _reason(name, fused, eager, oracle, budget)
    if not reason and not name.startswith("gradient") and _steps(fused) != _steps(eager):
        reason = f"strides {fused.stride()} instead of {eager.stride()}"
    return [f"{name}: {reason}"] if reason else []


# Of a difference: wherever it is, one has an infinity and the other NaN.
NO_NUMBERS = ", each infinite or NaN in both"


def _reason(name: str, fused: Tensor, eager: Tensor, oracle: Tensor, budget: Budget) -> str:
    """What is wrong; of what has no numbers only if nothing else is."""
    reason = compare(name, fused, eager, oracle, budget).reason
    if not reason or budget.bitwise or fused.shape != eager.shape or fused.dtype != eager.dtype:
        return reason
    both = no_numbers(fused, eager)
    if not both.any():
        return reason
    rest = (t.masked_fill(both, 0) for t in (fused, eager, oracle))
    return compare(name, *rest, budget).reason or reason + NO_NUMBERS


def no_numbers(a: Tensor, b: Tensor) -> Tensor:
    """Where one is infinite and the other NaN."""
    if not a.is_floating_point():
        return torch.zeros_like(a, dtype=torch.bool)
    return (a.isnan() & b.isinf()) | (a.isinf() & b.isnan())


def _steps(tensor: Tensor) -> list[int]:
    return strides_that_matter(tensor.shape, tensor.stride())


def strides_that_matter(shape: Sequence[int], strides: Sequence[int]) -> list[int]:
    """Of dimensions with more than one element, of a tensor that has any."""
    return [s for extent, s in zip(shape, strides) if extent > 1 and 0 not in shape]
