"""The operators: a name, what it means, its schema."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torchweld.operators import references as r


@dataclass(frozen=True)
class Operator:
    """`reference(*arguments)`: a pure function whose results are fresh tensors. `schema`: its
    arguments (Tensor, Tensor?, and constants) and results. `ahead`: one scalar, a loss, whose
    gradients are made with it. `adds`: its first two tensors are only added, so that they have one
    gradient. `exact_sizes`: how many sets of sizes are compiled for themselves, before there are
    symbols for sizes."""

    name: str
    reference: Callable
    schema: str
    ahead: bool = False
    adds: bool = False
    exact_sizes: int = 1

    @property
    def kinds(self) -> tuple[str, ...]:
        """The type of each argument."""
        inside = self.schema.partition("(")[2].partition(") ->")[0]
        return tuple(argument.split()[0] for argument in inside.split(", "))

    @property
    def is_single(self) -> bool:
        """It has one result."""
        return self.schema.endswith("-> Tensor")


_MANY = 16  # what holds scores or logits in parts needs sizes that are known
_LOSS = (
    "Tensor? class_weight, int ignore_index, float label_smoothing, float lse_square_scale, "
    "float? softcap, str reduction) -> Tensor"
)
_RMS = "Tensor? weight, float eps, float offset, str casting"
_MASK = "(Tensor x, Tensor? mask, float scale, bool causal) -> Tensor"

TABLE = (
    Operator("rms_norm", r.rms_norm, f"(Tensor x, {_RMS}) -> Tensor"),
    Operator("add_rms_norm", r.add_rms_norm,
             f"(Tensor x, Tensor residual, {_RMS}) -> (Tensor, Tensor)", adds=True),
    Operator("layer_norm", r.layer_norm,
             "(Tensor x, Tensor? weight, Tensor? bias, float eps) -> Tensor"),
    Operator("add_layer_norm", r.add_layer_norm,
             "(Tensor x, Tensor residual, Tensor? weight, Tensor? bias, float eps) "
             "-> (Tensor, Tensor)", adds=True),
    Operator("gated", r.gated, "(Tensor gate, Tensor up, str activation) -> Tensor"),
    Operator("gated_mlp", r.gated_mlp,
             "(Tensor x, Tensor gate, Tensor up, Tensor down, Tensor? gate_bias, "
             "Tensor? up_bias, Tensor? down_bias, str activation) -> Tensor"),
    Operator("attention", r.attention,
             "(Tensor query, Tensor key, Tensor value, Tensor? bias, str score, float scale) "
             "-> Tensor", exact_sizes=_MANY),
    Operator("softmax", r.softmax, _MASK),
    Operator("log_softmax", r.log_softmax, _MASK),
    Operator("rotary", r.rotary,
             "(Tensor q, Tensor k, Tensor cos, Tensor sin, int head_dim, bool interleaved) "
             "-> (Tensor, Tensor)"),
    Operator("cross_entropy", r.cross_entropy, f"(Tensor logits, Tensor target, {_LOSS}",
             ahead=True),
    Operator("z_loss", r.z_loss,
             "(Tensor logits, Tensor target, int ignore_index, float lse_square_scale, "
             "float? softcap, str reduction) -> Tensor"),
    Operator("linear_cross_entropy", r.linear_cross_entropy,
             f"(Tensor x, Tensor weight, Tensor target, Tensor? bias, {_LOSS}", ahead=True,
             exact_sizes=_MANY),
    Operator("dropout_add", r.dropout_add,
             "(Tensor x, Tensor residual, Tensor seed, float p) -> Tensor"),
)  # fmt: skip
