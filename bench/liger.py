"""Liger's kernels as one more way to run a model, for bench/gpu.py --against ...,liger.

Of a Llama its norms and gated layers (its rotary embedding would be put in for every model of the
process, so it is left out); of a gated layer of this repository its activation. For anything else
it raises. The weights are the model's own, so that a step of training changes both."""
from __future__ import annotations

import copy
from collections.abc import Callable

from torch import nn

from tables import DOES_NOT_APPLY
from torchweld.observe.report.ways import Recipe
from torchweld.zoo.models import GegluMlp


def _product(model: GegluMlp) -> Callable:
    from liger_kernel.ops import LigerGELUMulFunction, LigerSiLUMulFunction

    if type(model).__name__ == "SwiGluMlp":
        return lambda gate, up: LigerSiLUMulFunction.apply(gate, up, 1.0, 1.0)
    return LigerGELUMulFunction.apply


def _prepare(model: nn.Module, inputs: tuple, train: bool) -> Callable:
    found = copy.deepcopy(model, {id(p): p for p in model.parameters()})
    if isinstance(found, GegluMlp):
        found.product = _product(model)
        return found
    llama = next((m for m in found.modules() if type(m).__name__ == "LlamaForCausalLM"), None)
    if llama is None:
        raise NotImplementedError(f"{DOES_NOT_APPLY} to {type(model).__name__}")
    from liger_kernel.transformers import apply_liger_kernel_to_llama

    apply_liger_kernel_to_llama(rope=False, fused_linear_cross_entropy=False, model=llama)
    return found


RECIPE = Recipe(_prepare)
