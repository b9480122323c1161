"""The lowering table: every row is a real overload, and what models need is there."""

from __future__ import annotations

import torch
import torch._inductor.inductor_prims  # registers prims.fma, from torch 2.13 on

from torchweld.capture.lower import ROWS

# Overloads that the zoo's graphs consist of, forward and backward, besides library calls.
NEEDED = """
    add.Tensor sub.Tensor mul.Tensor mul.Scalar div.Tensor neg.default exp.default pow.Tensor_Scalar
    rsqrt.default cos.default sin.default tanh.default gelu.default gelu_backward.default
    silu.default silu_backward.default relu.default threshold_backward.default _to_copy.default
    clone.default where.self masked_fill.Scalar lt.Scalar le.Tensor bitwise_and.Tensor
    logical_and.default sum.dim_IntList mean.dim var_mean.correction amax.default argmax.default
    any.dim cumsum.default _softmax.default _softmax_backward_data.default _log_softmax.default
    _log_softmax_backward_data.default native_layer_norm.default
    native_layer_norm_backward.default _fused_rms_norm.default _fused_rms_norm_backward.default
    native_group_norm.default native_group_norm_backward.default
    _native_batch_norm_legit_functional.default _native_batch_norm_legit_no_training.default
    native_batch_norm_backward.default embedding.default embedding_dense_backward.default
    gather.default index.Tensor index_select.default index_put.default scatter_add.default
    nll_loss_forward.default view.default permute.default expand.default
    slice.Tensor select.int cat.default stack.default split.Tensor split_with_sizes.default
    unsqueeze.default squeeze.dim constant_pad_nd.default slice_backward.default
    select_backward.default full.default zeros_like.default arange.start_step scalar_tensor.default
"""


def test_every_row_is_an_overload():
    for name in ROWS:
        namespace, op, overload = name.split(".")
        known = name != "prims.fma.default" or hasattr(torch.ops.prims, "fma")
        if namespace != "torchweld" and known:  # torchweld's are defined when capture is imported
            packet = getattr(getattr(torch.ops, namespace), op, None)
            assert packet is not None and overload in packet.overloads(), name


def test_models_are_covered():
    assert {f"aten.{name}" for name in NEEDED.split()} <= ROWS.keys()
