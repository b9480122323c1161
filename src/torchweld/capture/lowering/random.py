"""Random numbers that are a function of a seed and the element: torchweld's own operation. Torch's
random operations stay calls."""

from __future__ import annotations

from torchweld.capture.lowering.call import Call
from torchweld.capture.lowering.expr import Expr
from torchweld.capture.lowering.registry import lowers
from torchweld.core import dtypes
from torchweld.ir.nodes import Op


@lowers("torchweld.philox_uniform.default")
def philox_uniform(call: Call, seed, size):
    """f32 in [0, 1) from the one seed and the row-major element number."""
    nest = call.nest(call.out.shape, extra=[(seed, [None] * seed.rank)])
    args = (nest.read(seed, [0] * seed.rank).value, nest.index_value(nest.flat_index()).value)
    value = nest.builder.emit(Op("philox", args, dtypes.f32))
    return call.finish(nest, Expr(nest.builder, value))
