"""Small tensor programs as data: inputs with awkward layouts and values, and lines of Python over
torch.

What the fuzzer draws, runs three ways and, when it finds a difference, writes out as a file.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

PREAMBLE = "import torch\nimport torch.nn.functional as F\n"
# torch.compile of torch 2.11 sees no default device: on a GPU, programs say where tensors are made.
_MADE = re.compile(r"\btorch\.(arange|tensor|zeros|ones|full|eye)\(")
_MAKER = """
def made_{name}(*args, **kwargs):
    return torch.{name}(*args, device={device!r}, **kwargs)
"""
_FLOATS = re.compile(r"torch\.(bfloat16|float16|float32)\b")

# Kept as text: the same definition makes inputs here and in a reproducer.
MAKE_INPUT = '''
def make_input(shape, dtype, layout, values, seed):
    """A tensor of `shape`: laid out "plain", "permuted", "expanded" or with NaN-filled "gaps"; of
    "normal", "offset" (mean 100) or "hard" values (ties, infinities, NaN, zeros of both signs)."""
    generator = torch.Generator().manual_seed(seed)
    if dtype == torch.bool:
        data = torch.rand(shape, generator=generator) < 0.5
    elif not dtype.is_floating_point:
        data = torch.randint(0, 5, shape, generator=generator).to(dtype)
    else:
        data = torch.randn(shape, generator=generator)
        if values == "offset":
            data = data + 100
        elif values == "hard":
            inf = float("inf")
            hard = torch.tensor([0.0, -0.0, 1.0, 1.0, -2.0, inf, -inf, inf - inf])
            at = torch.randint(0, 4 * len(hard), shape, generator=generator)
            data = torch.where(at < len(hard), hard[at % len(hard)], data)
        data = data.to(dtype)
    if layout == "permuted" and len(shape) > 1:
        order = list(reversed(range(len(shape))))
        return data.permute(order).contiguous().permute(order)
    if layout == "expanded" and len(shape) > 0 and shape[0] > 0:
        return data[:1].expand(shape)
    if layout == "gaps" and len(shape) > 0:
        fill = float("nan") if dtype.is_floating_point else 1
        room = torch.full([2 * n + 3 for n in shape], fill, dtype=dtype)
        window = room[tuple(slice(1, 1 + 2 * n, 2) for n in shape)]
        window.copy_(data)
        return window
    return data
'''
_namespace: dict = {"torch": torch}
exec(MAKE_INPUT, _namespace)
make_input = _namespace["make_input"]


@dataclass(frozen=True, slots=True)
class Input:
    """`view`: an expression of the inputs before, whose memory it shares; nothing else counts
    then."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    layout: str = "plain"
    values: str = "normal"
    seed: int = 0
    view: str = ""

    def make(self) -> Tensor:
        return make_input(self.shape, self.dtype, self.layout, self.values, self.seed)

    @property
    def source(self) -> str:
        return self.view or (
            f"make_input({self.shape}, {self.dtype}, {self.layout!r}, {self.values!r}, {self.seed})"
        )


@dataclass(frozen=True, slots=True)
class Program:
    """`lines` assign to v0, v1, ... from those before and the inputs x0, x1, ...; `outputs` name
    results. `bitwise`: those that only move data or decide something discrete, so that they must
    equal eager's to the bit. `small_chunks`: small logits are made some rows at a time, as large
    ones are (campaign/gates.py). `writes`: to its inputs, so that none has a gradient."""

    inputs: tuple[Input, ...]
    lines: tuple[str, ...]
    outputs: tuple[str, ...]
    bitwise: frozenset[str] = frozenset()
    small_chunks: bool = False
    writes: bool = False

    @property
    def source(self) -> str:
        """A function definition."""
        names = ", ".join(f"x{k}" for k in range(len(self.inputs)))
        body = [*self.lines, f"return ({', '.join(self.outputs)},)"]
        return f"def program({names}):\n" + "".join(f"    {line}\n" for line in body)

    def source_on(self, device: str) -> str:
        """`source`, with what makes tensors from nothing on `device`."""
        if device == "cpu":
            return self.source
        names = sorted(set(_MADE.findall(self.source)))
        makers = (_MAKER.format(name=name, device=device) for name in names)
        return "".join((*makers, "\n\n", _MADE.sub(r"made_\1(", self.source)))

    def function(self, exact: bool = False, device: str = "cpu"):
        """The program as a Python function of tensors on `device`; `exact`: casts between floats
        all go to float64."""
        namespace: dict = {}
        source = self.source_on(device)
        exec(PREAMBLE + (_FLOATS.sub("torch.float64", source) if exact else source), namespace)
        return namespace["program"]

    def make_inputs(self) -> list[Tensor]:
        return made(self.inputs)


def made(inputs: Sequence[Input]) -> list[Tensor]:
    """The tensors, in order; those that are views share memory with earlier ones."""
    found: dict[str, Tensor] = {}
    for position, given in enumerate(inputs):
        found[f"x{position}"] = eval(given.view, {}, found) if given.view else given.make()
    return list(found.values())
