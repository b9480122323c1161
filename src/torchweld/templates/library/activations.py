"""Finding out that a generated body is an activation that a library call can apply itself.

A body of smooth operations on one loaded value is an analytic function of it; it is the activation
if the two agree in float64 on points spread over the whole range. However the model wrote it
(`F.gelu`, or a product of powers and a tanh), it is recognised, and nothing else is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
import torch.nn.functional as F

from torchweld.core.torch_private import without_modes
from torchweld.ir.affine import Affine, constant
from torchweld.ir.nodes import Buffer, Cast, Comp, Const, Graph, IndexMap, Load, Op
from torchweld.ir.scalar import TABLE
from torchweld.ir.size import product

_SMOOTH = frozenset(
    ("add", "sub", "mul", "div", "neg", "reciprocal", "exp", "tanh", "sigmoid", "erf", "pow")
)
_TOLERANCE = 1e-12


@dataclass(frozen=True, slots=True)
class Activation:
    """oneDNN's name and algorithm, and the meaning."""

    name: str
    algorithm: str | None
    meaning: Callable[[torch.Tensor], torch.Tensor]


# Not relu: oneDNN turns NaN into 0 there.
ACTIVATIONS = (
    Activation("gelu", "none", F.gelu),
    Activation("gelu", "tanh", lambda x: F.gelu(x, approximate="tanh")),
    Activation("swish", None, F.silu),
    Activation("tanh", None, torch.tanh),
    Activation("sigmoid", None, torch.sigmoid),
)


def activation_of(comp: Comp, source: str, graph: Graph) -> Activation | None:
    """The activation that `comp` applies to every element of buffer `source`, in the same place of
    another buffer of its dtype; None if it does anything else."""
    if len(comp.stores) != 1 or comp.reads != (source,):
        return None
    store = comp.stores[0]
    given, result = graph.buffers[source], graph.buffers[store.buffer]
    loads = {i.index for i in comp.body if isinstance(i, Load)}
    plain = store.combine is None and store.guard is None and given.dtype == result.dtype
    if not plain or len(loads) != 1 or not _same_places(*loads, given, store.index, result):
        return None
    with without_modes():  # this may be called while fake tensors are traced
        values = _values(comp)
        if values is None:
            return None
        return next((a for a in ACTIVATIONS if _agree(a.meaning(_points()), values)), None)


def _same_places(read: IndexMap, given: Buffer, written: IndexMap, result: Buffer) -> bool:
    """Both dense, of one size, and every element stays where it is."""
    dense = _is_dense(given) and _is_dense(result)
    if not dense or product(given.shape) != product(result.shape):
        return False
    if not all(isinstance(i, Affine) for i in (*read, *written)):
        return False
    return _flat(read, given) == _flat(written, result)


def _is_dense(buffer: Buffer) -> bool:
    expected = 1
    for extent, stride in zip(reversed(buffer.shape), reversed(buffer.strides)):
        if stride != expected:
            return False
        expected = expected * extent
    return True


def _flat(index: IndexMap, buffer: Buffer) -> Affine:
    total = constant(0)
    for entry, stride in zip(index, buffer.strides):
        total = total + entry * stride
    return total


def _values(comp: Comp) -> torch.Tensor | None:
    """What the body makes of the points, in float64; None if it is not smooth, or if a rounding in
    it is the user's."""
    values: list = []
    for instr in comp.body:
        if isinstance(instr, Load) and instr.guard is None:
            values.append(_points())
        elif isinstance(instr, Const) and instr.dtype.is_float:
            values.append(torch.full_like(_points(), instr.value))
        elif isinstance(instr, Cast) and instr.dtype.is_float and not instr.must_round:
            values.append(values[instr.arg])
        elif isinstance(instr, Op) and instr.name in _SMOOTH:
            values.append(TABLE[instr.name].meaning(*(values[a] for a in instr.args)))
        else:
            return None
    return values[comp.stores[0].value]


def _agree(expected: torch.Tensor, values: torch.Tensor) -> bool:
    return bool(torch.allclose(values, expected, rtol=_TOLERANCE, atol=_TOLERANCE, equal_nan=True))


@cache
def _points() -> torch.Tensor:
    middle = torch.linspace(-12, 12, 193, dtype=torch.float64)
    small = torch.logspace(-12, -1, 12, dtype=torch.float64)
    large = torch.tensor([20.0, 50.0, 88.0], dtype=torch.float64)
    return torch.cat([middle, small, -small, large, -large])
