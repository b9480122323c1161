"""Which ATen operations are taken apart before lowering: torch's core table, less what is lowered
or called whole.

An operation is kept whole when the lowering table has a row for it, when a library does it best, or
when torch's decomposition would round elsewhere than eager does. `linear` and `matmul` arrive as
addmm, mm, bmm and views (autograd takes them apart before any table is asked), and stay that way.
"""

from __future__ import annotations

from functools import cache

from torchweld.capture import random, torch_private

# All overloads of each.
_KEPT_NAMES = """
    _log_softmax _log_softmax_backward_data _softmax _softmax_backward_data
    native_layer_norm native_layer_norm_backward native_group_norm native_group_norm_backward
    native_batch_norm native_batch_norm_backward _fused_rms_norm _fused_rms_norm_backward
    gelu gelu_backward silu silu_backward embedding embedding_dense_backward var_mean var sum
    squeeze addmm baddbmm convolution convolution_backward
    _scaled_dot_product_flash_attention_for_cpu upsample_nearest2d upsample_bilinear2d im2col col2im
    grid_sampler_2d
"""
KEPT_WHOLE = frozenset(_KEPT_NAMES.split())


@cache
def table() -> dict:
    """{OpOverload: function}, shared: do not change it."""
    core = torch_private.core_decompositions()
    core = {op: fn for op, fn in core.items() if _name(op) not in KEPT_WHOLE}
    return core | random.DECOMPOSITIONS


def _name(op) -> str:
    """aten.gelu.default -> gelu"""
    return op.name().split("::")[-1].split(".")[0]
