"""Samples of PyTorch's own operators, alone and between other operations, as programs.

    inputs -> before(first input) -> operator -> after(each result)
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from random import Random

import torch
from torch import Tensor

from torchweld.core.torch_private import pytree
from torchweld.exact.campaign.surrounded import AFTER, BEFORE, Surrounded, followed
from torchweld.exact.torch_private import operator_samples, samples_of

DTYPES = (torch.float32,) * 5 + (torch.bfloat16, torch.float16, torch.int64, torch.bool)
INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32)
_MOST_SAMPLES, _MOST_ELEMENTS = 40, 20_000
_FLOATS = (torch.float32, torch.bfloat16, torch.float16)

# What draws numbers, returns memory as it finds it, or makes what no program passes on.
_LEFT_OUT = ("empty", "rand", "normal", "dropout", "bernoulli", "multinomial", "uniform",
             "exponential", "geometric", "cauchy", "fractional", "to_sparse", "sparse", "svd",
             "eig", "lobpcg", "nested", "jiterator", "_segment_reduce", "rrelu",
             "to", "pca_lowrank")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Sample(Surrounded):
    """Sample number `index` of an operator. As `exact.programs.Program` to who runs it."""

    name: str
    variant: str
    index: int
    dtype: torch.dtype
    seed: int
    before: str = "nothing"
    after: str = "nothing"
    bitwise: frozenset[str] = frozenset()

    @property
    def source(self) -> str:
        """What it is, in a line."""
        operator = ".".join(filter(None, (self.name, self.variant)))
        return (
            f"sample {self.index} of {operator}, {self.dtype}, seed {self.seed}: "
            f"{BEFORE[self.before]} -> {operator} -> {AFTER[self.after]}"
        )

    def make_inputs(self) -> list[Tensor]:
        return [leaf.detach() for leaf in self._leaves() if isinstance(leaf, Tensor)]

    def function(self, exact: bool = False, device: str = "cpu") -> Callable:
        """Of the sample's tensors, in order; `exact`: numbers that are asked for as floats are
        float64."""
        leaves, spec = pytree.tree_flatten(self._sample())
        operator = _operator(self.name, self.variant).op
        before, after = BEFORE[self.before], AFTER[self.after]
        if exact:
            leaves = [torch.float64 if any(v is f for f in _FLOATS) else v for v in leaves]

        def program(*tensors: Tensor) -> tuple[Tensor, ...]:
            given = iter(tensors)
            filled = [next(given) if isinstance(v, Tensor) else v for v in leaves]
            first, args, kwargs = pytree.tree_unflatten(filled, spec)
            if isinstance(first, Tensor) and first.is_floating_point() and first.dim():
                first = eval(before, {"torch": torch, "t": first})
            found = pytree.tree_leaves(operator(first, *args, **kwargs))
            held = first if isinstance(first, Tensor) else tensors[0]
            return tuple(followed(after, o, held) for o in found if isinstance(o, Tensor))

        return program

    def _sample(self) -> tuple:
        """Another copy at each call: an operator may write to what it is given."""
        return deepcopy(_drawn(self.name, self.variant, self.index, self.dtype, self.seed))

    def _leaves(self) -> list:
        return pytree.tree_leaves(self._sample())


def _operator(name: str, variant: str):
    named = (o for o in operator_samples() if o.name == name)
    return next(o for o in named if o.variant_test_name == variant)


@lru_cache(maxsize=4)
def _drawn(name: str, variant: str, index: int, dtype: torch.dtype, seed: int) -> tuple:
    """The database draws every sample up to the one that is wanted."""
    torch.manual_seed(seed)
    found = next(islice(samples_of(_operator(name, variant), dtype), index, None))
    return found.input, tuple(found.args), dict(found.kwargs)


def integers(seed: int) -> Sample | None:
    """As `sample`, of the types that `DTYPES` lacks."""
    return sample(seed, INTEGERS)


def sample(seed: int, dtypes: tuple[torch.dtype, ...] = DTYPES) -> Sample | None:
    """The sample of `seed`; None where the operator has none, or draws numbers."""
    rng = Random(seed)
    operator = rng.choice([o for o in operator_samples() if _is_taken(o.name)])
    dtype = rng.choice(dtypes)
    if dtype not in operator.dtypes:
        return None
    before, after = rng.choice(list(BEFORE)), rng.choice(list(AFTER))
    index, number = rng.randrange(_MOST_SAMPLES), rng.randrange(4)
    torch.manual_seed(number)
    samples = samples_of(operator, dtype)
    count = sum(1 for _ in islice(samples, _MOST_SAMPLES))
    if not count:
        return None
    found = Sample(
        operator.name, operator.variant_test_name, index % count, dtype, number, before, after
    )
    return found if found.make_inputs() and _is_small(found) else None


def _is_taken(name: str) -> bool:
    return not any(part in name for part in _LEFT_OUT[:-2]) and name not in _LEFT_OUT[-2:]


def _is_small(found: Sample) -> bool:
    tensors = found.make_inputs()
    plain = all(t.layout == torch.strided and not t.is_complex() for t in tensors)
    return plain and sum(t.numel() for t in tensors) <= _MOST_ELEMENTS
