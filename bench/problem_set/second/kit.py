"""How the problems of the second set are written: one call each. Their names begin with `u_`."""

from __future__ import annotations

import torch

from problem_set.core import Problem, add, function, net, weight  # noqa: F401
from problem_set.second.scales import SCALES

R = torch.randn
# What people run in bfloat16: whole blocks, and a third of the products and chains.
LOW_GROUPS = {"attention", "blocks"}
FULL = {
    "residual_codebooks",
    "finite_scalar_codes",
    "two_towers_top_ten",
    "product_key_memory",
    "super_resolution_tail",
}
LOW = set(
    """
    matmul_tall_skinny matmul_second_transposed_odd matmul_broadcast_batch forms_of_rows
    scores_squared_relu blocks_on_diagonal product_transposed_out batched_matrix_vector
    gemm_relu_divide gemm_absolute_square_root_sum gemm_l2_normalise_scale
    gemm_three_activations_added gemm_group_norm_mish_gate_maximum gemm_logsumexp_leaky_gelu
    conv_relu_bias_hardswish conv_batch_norm_maxout conv_layer_norm_of_channels_gelu
    conv1d_group_norm_glu_skip conv_spatial_attention conv3d_leaky_sum_clamp_gelu
    conv_transpose_batch_norm_tanh_max_pool_norm depthwise_pointwise_hardtanh_norm
    conv_asymmetric pointwise_odd conv_grouped_strided conv1d_grouped_wide
    layer_norm_channels_first group_norm_seven softmax_of_middle distillation
    rnn_with_layer_norm lstm_cell_of_six_steps weighted_moments
    """.split()  # noqa: SIM905
)


def case(group):
    """`whole(name, make, **fields)`, and `plain(name, call, inputs, **fields)` for a function."""

    def whole(name, make, **fields):
        fields.setdefault("low", name in LOW or (group in LOW_GROUPS and name not in FULL))
        fields.setdefault("scale", SCALES.get("u_" + name, 16))
        add(Problem("u_" + name, "u_" + group, make, **fields))

    def plain(name, call, inputs, **fields):
        whole(name, lambda s: (function(call), inputs(s)), **fields)

    return whole, plain


def integers(high, *shape):
    return torch.randint(0, high, shape)
