"""Graphs of kernels that double and add one, as text: what programs of either device are tried
with."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch


@dataclass
class Record:
    """What a program notes while it runs."""

    events: list = field(default_factory=list)

    def kinds(self) -> list[str]:
        return [note.kind for note in self.events]


def affine_comp(name: str, source: str, target: str, size="s0", first: str = "") -> str:
    """target[i] = 2 * source[i] + 1. `first`: indices of dimensions before, such as "0, "."""
    return f"""
  comp {name} [i:{size}] {{
    %0 = load {source}[{first}i] : f32
    %1 = const 2.0 : f32
    %2 = mul %0 %1 : f32
    %3 = const 1.0 : f32
    %4 = add %2 %3 : f32
    store {target}[i] %4
  }}"""


def chain_steps(length: int) -> list[tuple[str, str, str]]:
    """(kernel, what it reads, what it writes), from x to y."""
    names = ["x", *(f"t{i}" for i in range(1, length)), "y"]
    return [(f"k{i}", names[i], names[i + 1]) for i in range(length)]


def chain_text(length: int, device: str, size="s0", more: str = "") -> str:
    """`more`: outputs beside y."""
    steps = chain_steps(length)
    buffers = "\n".join(f"  buffer {n} : f32[{size}] strides [1] on {device}"
                        for n in ("x", *(target for *_, target in steps)))  # fmt: skip
    symbols = "" if isinstance(size, int) else '  symbol s0 = ["size", 0, 0] hint 8\n'
    comps = "".join(affine_comp(*step, size) for step in steps)
    return f"""graph chain {{
{symbols}{buffers}
  input x
{comps}
  output view(y, [{size}], [1], 0){more}
}}"""


def chain(x: torch.Tensor, length: int) -> torch.Tensor:
    for _ in range(length):
        x = x * 2 + 1
    return x
