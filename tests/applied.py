"""A function of one tensor as a module, where a test needs one."""

from __future__ import annotations

from torch import nn


class Apply(nn.Module):
    def __init__(self, function) -> None:
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)
