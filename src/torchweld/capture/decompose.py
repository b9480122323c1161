"""Which ATen operations are taken apart before lowering: torch's core table, less what is lowered
or called whole.

What the lowering table has a row for stays whole: one row says where eager rounds, torch's
decomposition in casts and steps would be read as the user's own. `linear` and `matmul` arrive as
addmm, mm, bmm and views (autograd takes them apart before any table is asked), and stay that way.
"""

from __future__ import annotations

from functools import cache

from torchweld.capture import (
    interpolation,
    losses,
    pools,
    random,
    scatters,
    small_products,
    spaced,
    torch_private,
    transformer,
    trilinear,
)
from torchweld.capture.lowering.rows import ROWS

# Calls that a library does better than their parts would be.
LIBRARY_CALLS = frozenset(
    {
        "aten.baddbmm.default",
        "aten.baddbmm.dtype",
        "aten._scaled_dot_product_flash_attention_for_cpu.default",
        # Taken apart, each step of a sequence is a dozen operations.
        "aten.lstm.input",
        "aten.gru.input",
        "aten.rnn_tanh.input",
        "aten.rnn_relu.input",
    }
)

# Lowered whole too, but the partitioner knows only what they are made of: it computes views again.
TAKEN_APART = frozenset(
    {
        "aten.detach.default",
        "aten.t.default",
        "aten.transpose.int",
        "aten.transpose_copy.int",
        "aten._reshape_alias.default",
    }
)


@cache
def table() -> dict:
    """{OpOverload: function}, shared: do not change it."""
    whole = LIBRARY_CALLS | (ROWS.keys() - TAKEN_APART)
    core = torch_private.core_decompositions()
    core = {op: fn for op, fn in core.items() if str(op) not in whole}
    own = (
        random, losses, transformer, interpolation, small_products, pools, scatters, spaced,
        trilinear,
    )  # fmt: skip
    return core | {op: fn for part in own for op, fn in part.DECOMPOSITIONS.items()}
