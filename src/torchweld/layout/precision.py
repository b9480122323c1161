"""How cuDNN brings the factors of a float32 convolution to TF32, asked of cuDNN itself.

Torch lets it (`torch.backends.cudnn.allow_tf32`), and its heuristics choose by shape and layout. On
an H100 eager's convolution of 8 colours is exact to 4e-8, the same with channels last to 1e-5. Its
kernels for Ampere round the factors, those for Hopper drop bits: a weight's gradient that eager's
layout has to 3.0e-4 is then exact to 8.2e-4 (8 -> 64 channels, 64 images of 128 x 128). Only a call
can tell: TF32 keeps 10 bits of a fraction, so that 1 and 1 + 2^-12 are the same to it, and 1 and
1 + 3 * 2^-12 are where bits are dropped. It tells what makes the convolution, too: where factors
stay as they are, no tensor cores. With channels last cuDNN is slow then: 16 -> 50 channels, 3 x 3,
16 images of 77 x 99 take an H100 152 us so, in eager's layout 92, neither by TF32.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import torch

from torchweld.core.torch_private import without_modes
from torchweld.ir.nodes import Arg, Extern, Graph, View
from torchweld.ir.size import Poly, evaluate

_PLAIN, _NEAR, _ABOVE = 1.0, 1.0 + 2.0**-12, 1.0 + 3 * 2.0**-12
_CALLS = {
    "aten.convolution.default": torch.ops.aten.convolution.default,
    "aten.convolution_backward.default": torch.ops.aten.convolution_backward.default,
}


@dataclass(frozen=True, slots=True)
class _Given:
    """A tensor among the arguments."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    device: str

    def filled(self, value: float) -> torch.Tensor:
        last = sum((n - 1) * s for n, s in zip(self.shape, self.strides))
        memory = torch.full((max(last, 0) + 1,), value, device=self.device)
        return memory.as_strided(self.shape, self.strides)


def loses_precision(node: Extern, other: Extern, graph: Graph) -> bool:
    """Whether some result of the convolution `other` keeps less of the factors than that of `node`,
    which means the same. At the sizes seen at capture; True if there is no memory to ask, False if
    there is no GPU."""
    if not torch.cuda.is_available():
        return False
    try:
        before = _losses(node.target, _bound(node.args, graph))
        after = before if min(before) == 2 else _losses(other.target, _bound(other.args, graph))
    except torch.cuda.OutOfMemoryError:
        return True
    return any(late > early for early, late in zip(before, after))


def is_exact(node: Extern, graph: Graph) -> bool:
    """Whether a convolution keeps all of its factors, as far as is known."""
    if not torch.cuda.is_available():
        return False
    try:
        return max(_losses(node.target, _bound(node.args, graph))) == 0
    except torch.cuda.OutOfMemoryError:
        return False


def _bound(args: Sequence[Arg], graph: Graph) -> tuple:
    def bind(arg: Arg):
        if isinstance(arg, View):
            sizes = tuple(evaluate(s, graph.hints) for s in (*arg.shape, *arg.strides))
            rank = len(arg.shape)
            return _Given(sizes[:rank], sizes[rank:], graph.buffers[arg.buffer].device)
        if isinstance(arg, tuple):
            return tuple(map(bind, arg))
        return evaluate(arg, graph.hints) if isinstance(arg, Poly) else arg

    return tuple(map(bind, args))


@cache
def _losses(target: str, args: tuple) -> tuple[int, ...]:
    """Of each result, what becomes of its factors: 0 if they stay as they are, 1 if they are
    rounded to TF32, 2 if bits are dropped."""
    with without_modes(), torch.inference_mode():
        plain, *others = (_results(target, args, value) for value in (_PLAIN, _NEAR, _ABOVE))
        return tuple(sum(torch.equal(r, o) for o in same) for r, *same in zip(plain, *others))


def _results(target: str, args: tuple, value: float) -> list[torch.Tensor]:
    """Of the call with `value` everywhere in its first argument and ones in the others; the sums
    of a bias are no products. A part of each result, so that the rest is free for the next call."""
    first, *others = args
    ones = (a.filled(1.0) if isinstance(a, _Given) else a for a in others)
    result = _CALLS[target](first.filled(value), *ones)
    results = result[:2] if isinstance(result, tuple) else (result,)
    return [r[:1].clone() for r in results if r is not None]
