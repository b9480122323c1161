"""The error contract: fused against eager, both against float64.

    relative L2 error    fused <= 1.5 x eager + floor
    largest error        fused <= 3 x eager + floor
    both                 fused <= 10 x eager, where eager has no correct digit: a sum that cancels
    NaN and infinities   where eager or float64 has them
    integers, booleans, data movement: the same bits as eager

The floor is the output's resolution: a result that eager happens to get without error may still be
rounded.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Budget:
    """`terms`: the length of the longest chain of additions behind an output, where known; errors
    of float32 sums grow with its square root. `bitwise`: the output is moved data, and equal to
    eager's to the bit."""

    relative: float = 1.5
    largest: float = 3.0
    terms: int = 1
    bitwise: bool = False
    absolute: float = 0.0


CONTRACT = Budget()


# Errors of few elements scatter: the ratio of two root mean squares over n samples does by about
# 1/sqrt(n), and a scalar loss is one sample. The ratios of the budget grow by 1 + SCATTER/sqrt(n).
# Where eager's error is that of few elements, these are the samples: a value rounded across zero
# flips its relu, and a few flips are the error of a gradient, 1000 times that of the others.
SCATTER = 4.0

# A result that is zero but for rounding, as the gradient of the bias of an attention's keys, has no
# digit in common with the exact one: its size is that of rounding, in whatever order sums are.
NOISE, NOISE_RATIO = 0.5, 10.0


@dataclass(frozen=True, slots=True)
class TensorError:
    """One output. Errors are against float64 (`l2`: relative to `norm`), over its `count` finite
    elements, of which `scale` is the largest magnitude. `eager_l4`: the fourth root of the sum of
    eager's errors to the fourth. `reason` is empty if `ok`."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    count: int = 0
    norm: float = 0.0
    eager_l2: float = 0.0
    fused_l2: float = 0.0
    eager_l4: float = 0.0
    eager_max: float = 0.0
    fused_max: float = 0.0
    scale: float = 0.0
    reason: str = ""

    @property
    def ok(self) -> bool:
        """Whether it is within the budget."""
        return not self.reason

    @property
    def samples(self) -> float:
        """How many elements make up eager's error: all if it is spread as normal numbers are."""
        if not self.eager_l4:
            return self.count
        spread = 3 * (self.eager_l2 * self.norm / self.eager_l4) ** 4
        return max(1.0, min(self.count, spread))


def resolution(dtype: torch.dtype, terms: int = 1) -> float:
    """Relative error that one rounding to `dtype`, and `terms` additions in the type it is computed
    in, may leave."""
    computed = torch.float32 if dtype.itemsize < 4 else dtype
    return torch.finfo(dtype).eps / 2 + torch.finfo(computed).eps * (1 + math.sqrt(terms))


def compare(
    name: str, fused: Tensor, eager: Tensor, oracle: Tensor, budget: Budget = CONTRACT
) -> TensorError:
    """Whether `fused` keeps the contract. `oracle`: the same output in higher precision."""
    return judge(measure(name, fused, eager, oracle, budget.bitwise), budget)


def measure(
    name: str, fused: Tensor, eager: Tensor, oracle: Tensor, bitwise: bool = False
) -> TensorError:
    """Errors, not judged yet; what is wrong whatever the budget has its reason. Complex numbers are
    compared as pairs of real ones."""
    about = (name, str(eager.dtype).removeprefix("torch."), tuple(eager.shape))
    for what in ("shape", "dtype", "device"):
        if getattr(fused, what) != getattr(eager, what):
            found, expected = getattr(fused, what), getattr(eager, what)
            return TensorError(*about, reason=f"{what} {found} instead of {expected}")
    fused, eager, oracle = (as_real_numbers(t.detach()) for t in (fused, eager, oracle))
    if bitwise or not eager.is_floating_point():
        return TensorError(*about, reason=_bit_difference(fused, eager, oracle))
    misplaced = _misplaced(fused, eager, oracle)
    if misplaced:
        return TensorError(*about, reason=misplaced)
    return _measured(about, fused, eager, oracle)


def as_real_numbers(tensor: Tensor) -> Tensor:
    """A tensor of complex numbers as [..., 2]; another as it is."""
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def pool(errors: Sequence[TensorError]) -> TensorError:
    """One output over several runs: the first that is wrong, else the errors taken together."""
    for error in errors:
        if not error.ok:
            return error
    norm = _root(e.norm for e in errors)
    share = norm or 1.0
    return replace(
        errors[0],
        count=sum(e.count for e in errors),
        norm=norm,
        eager_l2=_root(e.eager_l2 * e.norm for e in errors) / share,
        fused_l2=_root(e.fused_l2 * e.norm for e in errors) / share,
        eager_l4=_root(e.eager_l4**2 for e in errors) ** 0.5,
        **{f: max(getattr(e, f) for e in errors) for f in ("eager_max", "fused_max", "scale")},
    )


def judge(found: TensorError, budget: Budget = CONTRACT) -> TensorError:
    """`found` with the reason why it is outside the budget, if it is."""
    if not found.ok or not found.count:
        return found
    dtype = getattr(torch, found.dtype)
    floor, tiny = resolution(dtype, budget.terms), torch.finfo(dtype).tiny + budget.absolute
    scatter = 1 + SCATTER / math.sqrt(found.samples)
    noise = NOISE_RATIO if found.eager_l2 > NOISE else 0.0
    l2_limit = max(budget.relative, noise) * scatter * found.eager_l2 + floor
    max_limit = max(budget.largest, noise) * scatter * found.eager_max + floor * found.scale + tiny
    reasons = []
    if not found.fused_l2 <= l2_limit and found.fused_max > tiny:
        reasons.append(f"relative L2 error {found.fused_l2:.2e} above {l2_limit:.2e}")
    if not found.fused_max <= max_limit:
        reasons.append(f"largest error {found.fused_max:.2e} above {max_limit:.2e}")
    return replace(found, reason="; ".join(reasons))


def _bit_difference(fused: Tensor, eager: Tensor, oracle: Tensor) -> str:
    """Of integers also how many are not what float64 gives: where as many of eager's are, they
    follow from numbers that both have rounded."""
    count = _differing(fused, eager)
    if not count:
        return ""
    reason = f"{count} of {eager.numel()} elements differ, and must not"
    if eager.is_floating_point() or oracle.dtype != eager.dtype:
        return reason
    ours, theirs = (_differing(t, oracle) for t in (fused, eager))
    return f"{reason} (from float64's {ours} do, and {theirs} of eager's)"


def _differing(one: Tensor, other: Tensor) -> int:
    same = one == other
    if other.is_floating_point():
        same |= one.isnan() & other.isnan()
    return int((~same).sum())


def _misplaced(fused: Tensor, eager: Tensor, oracle: Tensor) -> str:
    """NaN or infinities where neither eager nor the oracle has them, or the other way round."""
    fused, eager, rounded = map(_tested, (fused, eager, oracle.to(eager.dtype)))
    for what, test in CLASSES:
        at = test(fused)
        wrong = (at != test(eager)) & (at != test(rounded))
        if wrong.any():
            first = tuple(wrong.nonzero()[0].tolist())
            return f"{what}: {int(wrong.sum())} elements, first at {first}: " + (
                f"fused {fused[first].item()}, eager {eager[first].item()}"
            )
    return ""


def _tested(t: Tensor) -> Tensor:
    """The same numbers, of which ATen can say whether they are finite."""
    return t.float() if t.dtype.itemsize == 1 else t


CLASSES = (
    ("NaN", torch.isnan),
    ("infinity", torch.isposinf),
    ("negative infinity", torch.isneginf),
)


def _measured(about, fused: Tensor, eager: Tensor, oracle: Tensor) -> TensorError:
    a, b, c = (_tested(t).isfinite() for t in (fused, eager, oracle))
    finite = a & b & c
    truth = oracle[finite].double()
    if truth.numel() == 0:
        return TensorError(*about)
    eager_error, fused_error = ((t[finite].double() - truth).abs() for t in (eager, fused))
    norm = max(float(truth.norm()), torch.finfo(eager.dtype).tiny)
    return TensorError(
        *about,
        count=truth.numel(),
        norm=norm,
        eager_l2=float(eager_error.norm()) / norm,
        fused_l2=float(fused_error.norm()) / norm,
        eager_l4=float(eager_error.norm(4)),
        eager_max=float(eager_error.max()),
        fused_max=float(fused_error.max()),
        scale=float(truth.abs().max()),
    )


def _root(values: Iterable[float]) -> float:
    """Square root of the sum of squares."""
    return math.sqrt(sum(v * v for v in values))
