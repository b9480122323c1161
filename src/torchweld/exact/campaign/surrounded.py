"""What stands before and after a sample of torch's own operators and modules."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TypeVar

import torch
from torch import Tensor

_Sample = TypeVar("_Sample", bound="Surrounded")

# `t`: the operator's first input; near what it was, so that it stays where the operator is defined.
BEFORE = {
    "nothing": "t",
    "product": "t * 1.0009765625",
    "turned": "(t.transpose(0, -1) * 1.0009765625).contiguous().transpose(0, -1)",
    "half": "torch.cat([t, t * 2])[: t.shape[0]]",
}
# `o`: a result.
AFTER = {
    "nothing": "o",
    "chain": "o.sin() * 2",
    "sum": "o.sum(-1) * 0.5",
    "softmax": "o.softmax(0)",
    "residual": "o + t if o.shape == t.shape else o * 3",
    "turned": "o.transpose(0, -1).contiguous() * 2",
    "part": "o[..., -1:] * o",
}


class Surrounded:
    """A frozen dataclass with `before` and `after`, names in BEFORE and AFTER."""

    __slots__ = ()
    before: str
    after: str

    def make_inputs(self) -> list[Tensor]:
        """New tensors for `function`."""
        raise NotImplementedError

    def function(self, exact: bool = False, device: str = "cpu") -> Callable:
        """Of these tensors to a tuple of results; `exact`: for tensors in float64; `device`: where
        they are."""
        raise NotImplementedError

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the results."""
        with torch.no_grad():
            results = self.function()(*self.make_inputs())
        return tuple(f"result {k}" for k in range(len(results)))

    def smaller(self: _Sample) -> Iterator[_Sample]:
        """With less around it."""
        if self.before != "nothing":
            yield replace(self, before="nothing")  # type: ignore[type-var]
        if self.after != "nothing":
            yield replace(self, after="nothing")  # type: ignore[type-var]


def followed(after: str, o: Tensor, t: Tensor) -> Tensor:
    """A result `o`, with what AFTER says behind it; `t`: the first input."""
    if not o.is_floating_point() or not o.dim():
        return o.clone()
    return eval(after, {"torch": torch, "o": o, "t": t})
