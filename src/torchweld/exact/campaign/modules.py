"""Samples of PyTorch's own modules, in training and evaluation, as programs of their parameters,
buffers and inputs.

    inputs -> before(first input) -> module -> after(each result), and the buffers that it writes
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from random import Random

import torch
from torch import Tensor, nn
from torch.func import functional_call

from torchweld.core.torch_private import pytree
from torchweld.exact.campaign.surrounded import AFTER, BEFORE, Surrounded, followed
from torchweld.exact.torch_private import module_samples

DTYPES = (torch.float32,) * 4 + (torch.bfloat16, torch.float16)
_MOST_SAMPLES, _MOST_ELEMENTS = 60, 40_000
_LEFT_OUT = ("Dropout", "Fractional", "RReLU", "Lazy")  # they draw numbers, or have no sizes yet


@dataclass(frozen=True, slots=True)
class ModuleSample(Surrounded):
    """Sample number `index` of a module. As `exact.programs.Program` to who runs it."""

    name: str
    index: int
    dtype: torch.dtype
    training: bool
    seed: int
    before: str = "nothing"
    after: str = "nothing"
    bitwise: frozenset[str] = frozenset()

    @property
    def source(self) -> str:
        """What it is, in a line."""
        mode = "training" if self.training else "evaluation"
        return (
            f"sample {self.index} of {self.name} in {mode}, {self.dtype}, seed {self.seed}: "
            f"{BEFORE[self.before]} -> {self.name} -> {AFTER[self.after]}"
        )

    def make_inputs(self) -> list[Tensor]:
        """Those of forward, then parameters and buffers."""
        module, given = self._sample()
        leaves = [leaf.detach() for leaf in pytree.tree_leaves(given) if isinstance(leaf, Tensor)]
        return leaves + [t.detach().clone() for t in _state(module).values()]

    def function(self, exact: bool = False, device: str = "cpu") -> Callable:
        """Of the sample's tensors, in order."""
        module, given = self._sample()
        module = module.double() if exact else module
        leaves, spec = pytree.tree_flatten(given)
        before, after, state = BEFORE[self.before], AFTER[self.after], list(_state(module))
        buffers = [name for name, _ in module.named_buffers()]

        def program(*tensors: Tensor) -> tuple[Tensor, ...]:
            values = dict(zip(state, tensors[len(tensors) - len(state) :]))
            values |= {name: values[name].clone() for name in buffers}
            taken = iter(tensors)
            filled = [next(taken) if isinstance(v, Tensor) else v for v in leaves]
            args, kwargs = pytree.tree_unflatten(filled, spec)
            if args and isinstance(args[0], Tensor) and _may_change(args[0]):
                args = (eval(before, {"torch": torch, "t": args[0]}), *args[1:])
            found = pytree.tree_leaves(functional_call(module, values, args, kwargs))
            held = args[0] if args and isinstance(args[0], Tensor) else tensors[0]
            results = [followed(after, o, held) for o in found if isinstance(o, Tensor)]
            return (*results, *(values[name] for name in buffers))

        return program

    def _sample(self) -> tuple[nn.Module, tuple]:
        """The module, and (args, kwargs) of its forward."""
        torch.manual_seed(self.seed)
        record = next(m for m in module_samples() if m.name == self.name)
        found = next(islice(_samples(record, self.dtype, self.training), self.index, None))
        made, given = found.constructor_input, found.forward_input
        module = record.module_cls(*made.args, **made.kwargs)
        return module.to(self.dtype).train(self.training), (tuple(given.args), dict(given.kwargs))


def _samples(record, dtype: torch.dtype, training: bool):
    return iter(record.module_inputs_func(
        record, device="cpu", dtype=dtype, requires_grad=False, training=training))


def _state(module: nn.Module) -> dict[str, Tensor]:
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def _may_change(first: Tensor) -> bool:
    return first.is_floating_point() and first.dim() > 0


def sample(seed: int) -> ModuleSample | None:
    """The sample of `seed`; None where there is none, or it draws numbers."""
    rng = Random(seed)
    named = [m.name for m in module_samples() if not any(p in m.name for p in _LEFT_OUT)]
    name, dtype, training = rng.choice(named), rng.choice(DTYPES), rng.random() < 0.5
    before, after = rng.choice(list(BEFORE)), rng.choice(list(AFTER))
    index, number = rng.randrange(_MOST_SAMPLES), rng.randrange(4)
    record = next(m for m in module_samples() if m.name == name)
    torch.manual_seed(number)
    try:
        count = sum(1 for _ in islice(_samples(record, dtype, training), _MOST_SAMPLES))
        found = ModuleSample(name, index % count, dtype, training, number, before, after)
        return found if _is_small(found) else None
    except Exception:  # no such sample in this type
        return None


def _is_small(found: ModuleSample) -> bool:
    module, _ = found._sample()
    tensors = found.make_inputs()
    shares = [getattr(m, "p", getattr(m, "dropout", 0)) for m in module.modules()]
    draws = found.training and any(shares)
    plain = all(t.layout == torch.strided and not t.is_complex() for t in tensors)
    return plain and not draws and sum(t.numel() for t in tensors) <= _MOST_ELEMENTS
