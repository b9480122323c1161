"""Lines of a program that are run as they are drawn, so that shapes are known."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import torch

from torchweld.exact.programs import Input, Program, made


class Lines:
    """Of a program on `inputs`. `refused`: torch, or the size of a result, did not allow a line."""

    def __init__(
        self, inputs: Sequence[Input], rng: Random, most_elements: int = 1 << 20
    ) -> None:
        self.inputs, self.rng, self._most = tuple(inputs), rng, most_elements
        self.values = {f"x{k}": tensor for k, tensor in enumerate(made(inputs))}
        self.lines: list[str] = []
        self.refused = False

    def given(self, one: Input) -> str:
        """The name of one more input."""
        name = f"x{len(self.inputs)}"
        self.inputs = (*self.inputs, one)
        self.values[name] = one.make()
        return name

    def set(self, name: str, expression: str) -> None:
        """name = expression"""
        if expression != name:
            self.add(f"{name} = {expression}")

    def add(self, line: str) -> None:
        self.lines.append(line)
        if self.refused:
            return
        try:
            with torch.no_grad():
                exec(line, {"torch": torch, "F": torch.nn.functional}, self.values)
        except Exception:
            self.refused = True
            return
        value = self.values.get(line.split(" ")[0], torch.empty(0))
        self.refused = not isinstance(value, torch.Tensor) or value.numel() > self._most

    def program(self, *outputs: str) -> Program | None:
        """What was drawn; None if it was refused."""
        if self.refused:
            return None
        return Program(self.inputs, tuple(self.lines), tuple(dict.fromkeys(outputs)))
