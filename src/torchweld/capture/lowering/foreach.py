"""Operations on lists of tensors, as the optimisers of torch.optim write them: each is the
operation on single tensors, once for each place in the lists.

    _foreach_add([a, b], [c, d], alpha=2)   ->   add(a, c, alpha=2), add(b, d, alpha=2)
    _foreach_mul([a, b], [2.0, 3.0])        ->   mul(a, 2.0), mul(b, 3.0)
"""

from __future__ import annotations

from collections.abc import Callable

from torchweld.capture.lowering.call import Call
from torchweld.capture.lowering.pointwise import pow_of
from torchweld.capture.lowering.reductions import vector_norm
from torchweld.capture.lowering.registry import ROWS, lowers

_UNARY = """
    abs neg sign sqrt rsqrt reciprocal exp expm1 log log2 log10 log1p sin cos tan asin acos atan
    sinh cosh tanh erf sigmoid ceil floor trunc round frac
"""
_BINARY = {
    "add": "aten.add.Tensor", "sub": "aten.sub.Tensor", "mul": "aten.mul.Tensor",
    "div": "aten.div.Tensor", "maximum": "aten.maximum.default",
    "minimum": "aten.minimum.default", "clamp_min": "aten.maximum.default",
    "clamp_max": "aten.minimum.default",
}  # fmt: skip
_OTHERS = {
    "addcmul": "aten.addcmul.default", "addcdiv": "aten.addcdiv.default",
    "lerp": "aten.lerp.Tensor", "copy": "aten.copy.default",
}  # fmt: skip
_OVERLOADS = {
    **dict.fromkeys(_BINARY, ("List", "Scalar", "ScalarList")),
    **dict.fromkeys(("add", "mul", "div"), ("List", "Scalar", "ScalarList", "Tensor")),
    **dict.fromkeys(("addcmul", "addcdiv"), ("Scalar", "ScalarList")),
    "lerp": ("List", "Scalar", "ScalarList"),
    "copy": ("default",),
}


def _each(row: Callable) -> Callable:
    """The row of an operation on lists, given that on single tensors."""

    def lowered(call: Call, *args, **kwargs) -> tuple:
        def single(k: int):
            named = {name: _at(a, k) for name, a in kwargs.items()}
            return row(_of(call, k), *(_at(a, k) for a in args), **named)

        return tuple(map(single, range(len(call.value))))

    return lowered


def _of(call: Call, k: int) -> Call:
    """The call that makes result k alone."""
    used = frozenset((0,)) if k in call.used else frozenset()
    return Call(call.graph, f"{call.name}_{k}", call.value[k], used)


def _at(argument, k: int):
    return argument[k] if isinstance(argument, tuple) else argument


def _norm(call: Call, x, order=2, dtype=None):
    return vector_norm(call, x, order)


for _name in _UNARY.split():
    lowers(f"aten._foreach_{_name}.default")(_each(ROWS[f"aten.{_name}.default"]))
for _name, _row in (_BINARY | _OTHERS).items():
    for _overload in _OVERLOADS[_name]:
        lowers(f"aten._foreach_{_name}.{_overload}")(_each(ROWS[_row]))
for _overload in ("List", "Scalar", "ScalarList", "ScalarAndTensor"):
    lowers(f"aten._foreach_pow.{_overload}")(_each(pow_of))
lowers("aten._foreach_norm.Scalar")(_each(_norm))
