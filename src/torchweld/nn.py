"""Modules of fused operations (`torchweld.ops`), with the names and arguments of Liger Kernel's
where those exist. Arguments that only say how Liger's kernels work are taken, and change nothing.

    from torchweld import nn

    norm = nn.LigerRMSNorm(4096, eps=1e-5)
    loss = nn.LigerFusedLinearCrossEntropyLoss()(head.weight, hidden, labels)
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import Linear, Module, Parameter

from torchweld import ops
from torchweld.core.errors import UsageError
from torchweld.ops import Casting, Reduction

_ACTIVATIONS = {
    "silu": "silu", "swish": "silu", "gelu": "gelu", "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh", "relu": "relu", "sigmoid": "sigmoid",
}  # fmt: skip
Init = Literal["ones", "zeros"]


class LigerRMSNorm(Module):
    """x / rms(x) * (weight + offset), over the last dimension. Without `elementwise_affine` there
    is no weight."""

    weight: Parameter | None

    def __init__(
        self, hidden_size: int, eps: float = 1e-6, offset: float = 0.0,
        casting_mode: Casting = "llama", init_fn: Init = "ones", in_place: bool = True,
        row_mode: bool | None = None, elementwise_affine: bool = True,
    ) -> None:  # fmt: skip
        super().__init__()
        self.variance_epsilon, self.offset, self.casting_mode = eps, offset, casting_mode
        made = Parameter(_filled(hidden_size, init_fn)) if elementwise_affine else None
        self.register_parameter("weight", made)

    def forward(self, hidden_states: Tensor) -> Tensor:
        return ops.rms_norm(
            hidden_states, self.weight, self.variance_epsilon, offset=self.offset,
            casting=self.casting_mode,
        )  # fmt: skip

    def extra_repr(self) -> str:
        return f"eps={self.variance_epsilon}, offset={self.offset}, {self.casting_mode}"


class LigerLayerNorm(Module):
    """Layer norm over the last dimension. The bias is zero, and trained if `bias`."""

    weight: Parameter | None
    bias: Parameter | None

    def __init__(
        self, hidden_size: int, eps: float = 1e-6, bias: bool = False, init_fn: Init = "ones"
    ) -> None:
        super().__init__()
        self.variance_epsilon = eps
        self.weight = Parameter(_filled(hidden_size, init_fn))
        self.bias = Parameter(torch.zeros(hidden_size), requires_grad=bias)

    def forward(self, hidden_states: Tensor) -> Tensor:
        return ops.layer_norm(hidden_states, self.weight, self.bias, self.variance_epsilon)

    def extra_repr(self) -> str:
        return f"eps={self.variance_epsilon}"


class _GatedMLP(Module):
    """`config` has hidden_size and intermediate_size; mlp_bias, if it is there, gives biases."""

    def __init__(self, config: Any, activation: str) -> None:
        super().__init__()
        self.config, self.activation = config, activation
        hidden, inner = config.hidden_size, config.intermediate_size
        bias = bool(getattr(config, "mlp_bias", False))
        self.gate_proj = Linear(hidden, inner, bias)
        self.up_proj = Linear(hidden, inner, bias)
        self.down_proj = Linear(inner, hidden, bias)

    def forward(self, x: Tensor) -> Tensor:
        return gated_mlp(x, self.gate_proj, self.up_proj, self.down_proj, self.activation)


class LigerSwiGLUMLP(_GatedMLP):
    """down_proj(silu(gate_proj(x)) * up_proj(x)). Errors: UsageError for another
    `config.hidden_act`."""

    def __init__(self, config: Any) -> None:
        super().__init__(config, _activation(config, ("silu",), "silu"))


class LigerGEGLUMLP(_GatedMLP):
    """down_proj(gelu(gate_proj(x)) * up_proj(x)), with gelu by tanh, as Liger's. Errors: UsageError
    for a `config.hidden_act` that is no gelu."""

    def __init__(self, config: Any) -> None:
        super().__init__(config, _activation(config, ("gelu", "gelu_tanh"), "gelu_tanh"))


class LigerCrossEntropyLoss(Module):
    """`forward(_input [rows, classes], target [rows])`; with `return_z_loss` also the part of
    `lse_square_scale`, without a gradient. The loss is in float32 at least."""

    def __init__(
        self, weight: Tensor | None = None, ignore_index: int = -100,
        lse_square_scale: float = 0.0, label_smoothing: float = 0.0,
        reduction: Reduction = "mean", softcap: float | None = None, return_z_loss: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        self.weight, self.ignore_index, self.reduction = weight, ignore_index, reduction
        self.lse_square_scale, self.label_smoothing = lse_square_scale, label_smoothing
        self.softcap, self.return_z_loss = softcap, return_z_loss

    def forward(self, _input: Tensor, target: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        loss = ops.cross_entropy(
            _input, target, weight=self.weight, ignore_index=self.ignore_index,
            label_smoothing=self.label_smoothing, lse_square_scale=self.lse_square_scale,
            softcap=self.softcap, reduction=self.reduction,
        )  # fmt: skip
        if not self.return_z_loss:
            return loss
        return loss, ops.z_loss(
            _input.detach(), target, lse_square_scale=self.lse_square_scale,
            ignore_index=self.ignore_index, softcap=self.softcap, reduction=self.reduction,
        )  # fmt: skip


class LigerFusedLinearCrossEntropyLoss(Module):
    """`forward(lin_weight [classes, hidden], _input [rows, hidden], target [rows], bias)`: the loss
    of `_input lin_weight^T + bias`, which is never whole in memory. Sums over rows are in float32
    whatever `accum_dtype` says. Errors: UsageError for `return_z_loss`."""

    def __init__(
        self, weight: Tensor | None = None, ignore_index: int = -100,
        lse_square_scale: float = 0.0, label_smoothing: float = 0.0,
        reduction: Reduction = "mean", softcap: float | None = None, return_z_loss: bool = False,
        accum_dtype: torch.dtype | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        if return_z_loss:
            raise UsageError(
                "return_z_loss needs the logits", do="use LigerCrossEntropyLoss of logits"
            )
        self.weight, self.ignore_index, self.reduction = weight, ignore_index, reduction
        self.lse_square_scale, self.label_smoothing = lse_square_scale, label_smoothing
        self.softcap = softcap

    def forward(
        self, lin_weight: Tensor, _input: Tensor, target: Tensor, bias: Tensor | None = None
    ) -> Tensor:
        return ops.linear_cross_entropy(
            _input, lin_weight, target, bias, class_weight=self.weight,
            ignore_index=self.ignore_index, label_smoothing=self.label_smoothing,
            lse_square_scale=self.lse_square_scale, softcap=self.softcap, reduction=self.reduction,
        )  # fmt: skip


def liger_rotary_pos_emb(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, position_ids: Tensor | None = None,
    unsqueeze_dim: int = 1,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """`ops.rotary` of q and k [batch, heads, positions, columns]; `position_ids` is not used, as in
    transformers."""
    return ops.rotary(q, k, cos, sin, head_dim=unsqueeze_dim)


def gated_mlp(x: Tensor, gate: Linear, up: Linear, down: Linear, activation: str) -> Tensor:
    """`ops.gated_mlp` by the weights of three modules."""
    return ops.gated_mlp(
        x, gate.weight, up.weight, down.weight, gate_bias=gate.bias, up_bias=up.bias,
        down_bias=down.bias, activation=activation,
    )  # fmt: skip


def _filled(size: int, init_fn: str) -> Tensor:
    if init_fn not in ("ones", "zeros"):
        raise UsageError(f"unknown init_fn {init_fn!r}", do="choose ones or zeros")
    return torch.ones(size) if init_fn == "ones" else torch.zeros(size)


def _activation(config: Any, allowed: tuple[str, ...], default: str) -> str:
    """`default` if the config asks for one of the `allowed`."""
    named = getattr(config, "hidden_act", None) or getattr(config, "hidden_activation", None)
    if named is not None and _ACTIVATIONS.get(named) not in allowed:
        raise UsageError(f"activation {named!r}", do="use torchweld.ops.gated_mlp")
    return default
