"""What the fuzzer may draw as the next line of a program: patterns over torch, as data."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from hypothesis import strategies as st
from torch import Tensor

from torchweld.exact.programs import PREAMBLE

FLOATS = (torch.float32, torch.float32, torch.bfloat16, torch.float16)
_GLOBALS: dict = {}
exec(PREAMBLE, _GLOBALS)
_REFUSALS = (
    RuntimeError,
    IndexError,
    TypeError,
    ValueError,
    NotImplementedError,
    ZeroDivisionError,
)


@dataclass
class Scope:
    """Values so far, and which of them are the same to the bit in any correct implementation."""

    draw: Callable
    values: dict[str, Tensor] = field(default_factory=dict)
    exact: set[str] = field(default_factory=set)
    lines: list[str] = field(default_factory=list)

    def pick(
        self, test: Callable[[Tensor], bool] = lambda t: True, exact: bool = False
    ) -> str | None:
        names = [n for n, t in self.values.items() if test(t) and (not exact or n in self.exact)]
        return self.draw(st.sampled_from(names)) if names else None

    def choose(self, options):
        return self.draw(st.sampled_from(list(options)))

    def dim(self, name: str) -> int:
        return self.draw(st.integers(-self.values[name].dim(), self.values[name].dim() - 1))

    def run(self, expression: str) -> Tensor | None:
        """The value of `expression`, or None where torch refuses it."""
        try:
            return eval(expression, dict(_GLOBALS), dict(self.values))
        except _REFUSALS:
            return None


@dataclass(frozen=True, slots=True)
class Template:
    """`draw(scope)` gives an expression or None. `keeps`: the result is exact if all that it reads
    is."""

    draw: Callable[[Scope], str | None]
    keeps: bool = False


def is_float(t: Tensor) -> bool:
    return t.is_floating_point()


def has_dims(t: Tensor) -> bool:
    return t.dim() > 0


def float_with_dims(t: Tensor) -> bool:
    return t.is_floating_point() and t.dim() > 0


def _over(
    test: Callable, options: tuple[str, ...], exact: bool = False
) -> Callable[[Scope], str | None]:
    """A template that fills {x} with a value that passes `test`, and {d} with one of its
    dimensions."""

    def draw(scope: Scope) -> str | None:
        x = scope.pick(test, exact)
        if x is None:
            return None
        pattern = scope.choose(options)
        d = scope.dim(x) if "{d}" in pattern else 0
        extent = scope.values[x].shape[d] if "{n}" in pattern and scope.values[x].dim() else 0
        return pattern.format(x=x, d=d, n=extent, last=tuple(scope.values[x].shape[-1:]))

    return draw


UNARY = (
    "torch.exp(-{x}.abs())",
    "torch.tanh({x})",
    "torch.sigmoid({x})",
    "F.gelu({x})",
    "F.gelu({x}, approximate='tanh')",
    "F.silu({x})",
    "torch.sqrt({x}.abs())",
    "torch.erf({x})",
    "torch.rsqrt({x} * {x} + 1)",
    "torch.log1p({x}.abs())",
    "torch.sin({x})",
    "F.softplus({x})",
    "{x} * 2.5",
    "{x} + 1",
    "1 - {x}",
    "{x} / 3",
    "{x} ** 2",
    "F.leaky_relu({x})",
    "F.elu({x})",
    "torch.clamp({x}, -1.5, 2) * 3",
    "F.hardswish({x}.nan_to_num())",  # eager at NaN: NaN in vectors, a number in what is left
    "torch.reciprocal({x}.abs() + 0.5)",
)
EXACT_UNARY = ("-{x}", "{x}.abs()", "F.relu({x})", "torch.clamp({x}, -1, 2)", "{x}.clone()")
REDUCTIONS = (
    "{x}.sum({d})",
    "{x}.mean({d}, keepdim=True)",
    "{x}.sum()",
    "{x}.var({d})",
    "{x}.std({d}, keepdim=True)",
    "{x}.logsumexp({d})",
    "{x}.norm(dim={d})",
    "torch.var_mean({x}, {d}, correction=0)[0]",
    "{x}.prod({d})",
    "{x}.mean((0, {d}) if {x}.dim() > 1 and {d} not in (0, -{x}.dim()) else {d})",
    "{x}.var(tuple(range({x}.dim() // 2, {x}.dim())), keepdim=True)",
    "{x}.sum({d}, keepdim=True).softmax(0)",
    "({x} - {x}.mean({d}, keepdim=True)).abs().mean()",
    "{x}.logsumexp({d}).sum(0, keepdim=True)",
)
EXACT_REDUCTIONS = (
    "{x}.amax({d})",
    "{x}.amin({d}, keepdim=True)",
    "{x}.max({d}).values",
    "{x}.amax(tuple(range({x}.dim())))",
    "{x}.amax({d}).amin(0)",
)
ROWS = (
    "torch.softmax({x}, {d})",
    "torch.log_softmax({x}, {d})",
    "F.layer_norm({x}, {last})",
    "{x} / ({x}.abs().sum({d}, keepdim=True) + 1)",
    "F.rms_norm({x}, {last})",
    "F.normalize({x}, dim={d})",
    "{x} - {x}.mean({d}, keepdim=True)",
    "{x}.cumsum({d})",
    "F.layer_norm({x}, {last}) * 2 + {x}",
    "{x}.flip({d}).cumsum({d}).flip({d})",
    "torch.sigmoid({x}).cumprod({d})",
    "{x}.cumsum({d}) / {x}.abs().sum({d}, keepdim=True).add(1)",
    "{x}.softmax({d}).cumsum({d})",
    "{x}.cumsum(0).cumsum({d})",
    "{x}.cummax({d})[0]",
    "{x}.cummin({d})[0] * 2",
)
WINDOWS = (
    "F.avg_pool1d({x}, 3, 1, 1)",
    "F.avg_pool1d({x}, 2, ceil_mode=True)",
    "F.avg_pool2d({x}[None], (2, 3), 1, (1, 1), count_include_pad=False)[0]",
    "F.adaptive_avg_pool1d({x}, 3)",
    "F.interpolate({x}[None], scale_factor=2)[0]",
    "{x}.unfold({d}, 2, 1).mean(-1)",
    "{x}.unfold(-1, 3, 2) * 2",
)
EXACT_WINDOWS = (
    "F.max_pool1d({x}, 3, 2, 1)",
    "F.max_pool2d({x}[None], 2, 1, 1)[0]",
    "F.max_pool1d({x}, 2, 1, 0, 2)",
    "{x}.unfold({d}, 2, 1).amax(-1)",
)
VIEWS = (
    "{x}.transpose(0, {d})",
    "{x}.unsqueeze({d})",
    "{x}.flatten()",
    "{x}.flip({d})",
    "{x}.contiguous()",
    "{x}.narrow({d}, 0, ({n} + 1) // 2)",
    "{x}.movedim({d}, 0)",
    "{x}[..., ::2]",
    "{x}[1:]",
    "{x}[..., 1:-1]",
    "{x}.reshape(-1, 2)",
    "{x}.reshape(2, -1)",
    "{x}.unsqueeze(0).expand(3, *{x}.shape)",
    "{x}.chunk(2, {d})[-1]",
    "{x}.select({d}, 0)",
    "{x}.squeeze()",
    "{x}.roll(1, {d})",
    "{x}.diagonal() if {x}.dim() == 2 else {x}",
    "F.pad({x}, (1, 2))",
    "F.pad({x}, (-1, 3), value=1.5)",
    "torch.cat([{x}, {x}], {d})",
    "torch.stack([{x}, {x}], {d})",
    "{x}.tril() if {x}.dim() > 1 else {x}",
    "{x}.repeat_interleave(2, {d})",
)
DISCRETE = (
    "{x}.argmax({d})",
    "{x}.argmin({d})",
    "{x} > 0.5",
    "{x} == {x}.amax({d}, keepdim=True)",
    "torch.isnan({x})",
    "torch.floor({x})",
    "torch.round({x})",
    "({x} * 0 == 0).any({d})",
    "{x}.nan_to_num(0, 5, -5).to(torch.int64)",
    "({x} > 0).all({d})",
    "{x}.sign()",
    "torch.trunc({x})",
    "{x}.max({d}).indices",
    "{x}.min({d}, keepdim=True).indices.squeeze()",
    "({x} > 0).sum({d})",
    "({x} > 0).to(torch.uint8)",
)
INTEGERS = (
    "{x} + 3",
    "{x} * {x}",
    "{x} % 3",
    "{x} // 2",
    "-{x}",
    "{x}.sum({d})",
    "{x}.cumsum({d})",
    "{x} >> 1",
    "{x}.amax({d})",
    "{x}.to(torch.float32)",
    "{x} < 2",
    "{x}.to(torch.int32)",
    "{x} * 0.5",
    "{x} / 3",
    "{x}.to(torch.int8)",
    "{x}.float().mean({d})",
)
BINARY = (
    "{x} + {y}",
    "{x} - {y}",
    "{x} * {y}",
    "{x} / ({y}.abs() + 1)",
    "torch.lerp({x}, {y}, 0.3)",
    "torch.addcmul({x}, {x}, {y})",
    "{x} * {y}.to(torch.float32)",
    "({x} * {y}).sum(-1, keepdim=True)",
    "{x} - {y}.mean()",
)
OUTER = (
    "{x}.unsqueeze(-1) * {y}.flatten()[:3]",
    "{x}[..., None, :] + {y}.flatten()[:2, None]",
    "({x}.unsqueeze(0) - {y}.flatten()[:3].view(-1, *[1] * {x}.dim())).abs().sum(0)",
)
EXACT_BINARY = ("torch.maximum({x}, {y})", "torch.minimum({x}, {y})")


def _binary(options: tuple[str, ...]) -> Callable[[Scope], str | None]:
    def draw(scope: Scope) -> str | None:
        x = scope.pick(is_float)
        y = (
            scope.pick(lambda t: is_float(t) and broadcast_size(t, scope.values[x]) is not None)
            if x
            else None
        )
        return scope.choose(options).format(x=x, y=y) if y else None

    return draw


def _outer(scope: Scope) -> str | None:
    x, y = scope.pick(float_with_dims), scope.pick(is_float)
    return scope.choose(OUTER).format(x=x, y=y) if x and y else None


def broadcast_size(a: Tensor, b: Tensor) -> int | None:
    try:
        return math.prod(torch.broadcast_shapes(a.shape, b.shape))
    except RuntimeError:
        return None


def _cat(scope: Scope) -> str | None:
    x = scope.pick(has_dims)
    if x is None:
        return None
    like = scope.values[x]
    y = scope.pick(
        lambda t: t.dtype == like.dtype and t.shape[1:] == like.shape[1:] and t.dim() == like.dim()
    )
    return f"torch.cat([{x}, {y}, {x}])" if y else None


def _where(scope: Scope) -> str | None:
    c = scope.pick(lambda t: t.dtype == torch.bool)
    x = scope.pick(lambda t: broadcast_size(t, scope.values[c]) is not None) if c else None
    if x is None:
        return None
    other = "2" if not is_float(scope.values[x]) else scope.choose(("-1.0", "float('-inf')"))
    if scope.values[x].dtype == torch.bool:
        return None
    return scope.choose((f"torch.where({c}, {x}, {other})", f"{x}.masked_fill({c}, {other})"))


def _gather(scope: Scope) -> str | None:
    i = scope.pick(lambda t: t.dtype in (torch.int64, torch.int32))
    x = scope.pick(lambda t: has_dims(t) and t.shape[0] > 0) if i else None
    if x is None:
        return None
    index = f"({i} % {scope.values[x].shape[0]})"
    options = [f"{x}[{index}]", f"{x}.index_select(0, {index}.flatten())"]
    if scope.values[x].dim() == 2:
        options.append(f"F.embedding({index}, {x})")
    if scope.values[i].dim() == scope.values[x].dim() and scope.values[i].dtype == torch.int64:
        options.append(f"{x}.gather(0, {index})")
        options.append(f"{x}.take_along_dim({index}, 0)")
    return scope.choose(options)


def _scatter(scope: Scope) -> str | None:
    i = scope.pick(lambda t: t.dtype == torch.int64 and t.dim() == 1)
    x = (
        scope.pick(lambda t: is_float(t) and t.dim() > 0 and t.shape[0] == len(scope.values[i]))
        if i
        else None
    )
    if x is None:
        return None
    made = f"{x}.new_zeros((4, *{x}.shape[1:]))"
    at = f"({i} % 4).view(-1, *[1] * ({x}.dim() - 1)).expand_as({x})"
    return scope.choose(
        (
            f"{made}.index_add(0, {i} % 4, {x})",
            f"{made}.index_put(({i} % 4,), {x}, accumulate=True)",
            f"{made}.scatter_add(0, {at}, {x})",
            f"{made}.scatter_reduce(0, {at}, {x}, 'amax')",
        )
    )


def _matmul(scope: Scope) -> str | None:
    x = scope.pick(lambda t: is_float(t) and t.dim() >= 2)
    if x is None:
        return None
    left = scope.values[x]
    options = [f"{x} @ {x}.transpose(-1, -2)"]
    y = scope.pick(
        lambda t: t.dtype == left.dtype and t.dim() == 2 and t.shape[1] == left.shape[-1]
    )
    if y:
        options += [f"F.linear({x}, {y})", f"F.gelu(F.linear({x}, {y}))"]
    return scope.choose(options)


def _cast(scope: Scope) -> str | None:
    x = scope.pick(is_float)
    return f"{x}.to({scope.choose(FLOATS)})" if x else None


TEMPLATES = (
    Template(_over(is_float, UNARY)),
    Template(_over(is_float, EXACT_UNARY), keeps=True),
    Template(_binary(BINARY)),
    Template(_binary(BINARY)),
    Template(_binary(EXACT_BINARY), keeps=True),
    Template(_over(float_with_dims, REDUCTIONS)),
    Template(_over(float_with_dims, EXACT_REDUCTIONS), keeps=True),
    Template(_over(float_with_dims, ROWS)),
    Template(_over(float_with_dims, WINDOWS)),
    Template(_over(float_with_dims, EXACT_WINDOWS), keeps=True),
    Template(_outer),
    Template(_over(has_dims, VIEWS), keeps=True),
    Template(_over(has_dims, VIEWS), keeps=True),
    Template(_over(float_with_dims, DISCRETE, exact=True), keeps=True),
    Template(
        _over(lambda t: t.dtype in (torch.int32, torch.int64) and t.dim() > 0, INTEGERS), keeps=True
    ),
    Template(_cat, keeps=True),
    Template(_where, keeps=True),
    Template(_gather, keeps=True),
    Template(_scatter),
    Template(_matmul),
    Template(_cast, keeps=True),
)
