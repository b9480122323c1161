"""Liger's kernels as one more way to run a model, for bench/gpu.py --against ...,liger.

Of a Llama its norms and gated layers (its rotary embedding would be put in for every model of the
process, so it is left out); of a gated layer of this repository its activation. For anything else
it raises."""
from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from liger_kernel.ops import LigerGELUMulFunction, LigerSiLUMulFunction
from liger_kernel.transformers import apply_liger_kernel_to_llama
from torch import nn

from torchweld.report.ways import Recipe

_ACTIVATIONS = {
    "GegluMlp": LigerGELUMulFunction.apply,
    "SwiGluMlp": lambda gate, up: LigerSiLUMulFunction.apply(gate, up, 1.0, 1.0),
}


class _Gated(nn.Module):
    def __init__(self, like: nn.Module) -> None:
        super().__init__()
        self.gate, self.up, self.down = like.gate, like.up, like.down
        self.activation = _ACTIVATIONS[type(like).__name__]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.activation(self.gate(x), self.up(x)))


def _prepare(model: nn.Module, inputs: tuple, train: bool) -> Callable:
    if type(model).__name__ in _ACTIVATIONS:
        return _Gated(model)
    found = copy.deepcopy(model)
    llama = next(m for m in found.modules() if type(m).__name__ == "LlamaForCausalLM")
    if train:
        raise NotImplementedError("a step of its own copy of the weights would not compare")
    apply_liger_kernel_to_llama(rope=False, fused_linear_cross_entropy=False, model=llama)
    return found


RECIPE = Recipe(_prepare)
