"""Library calls on complex numbers that are given and returned as pairs of real ones, [..., 2]:
transforms and products of matrices. Inside, pairs are viewed as complex numbers and back."""

from __future__ import annotations

from collections.abc import Callable

import torch

aten = torch.ops.aten
_library = torch.library.Library("torchweld", "FRAGMENT")
_ops = torch.ops.torchweld

_SIGNATURES = {
    aten._fft_r2c.default: "fft_r2c(Tensor x, int[] dim, int normalization, bool onesided)",
    aten._fft_c2r.default: "fft_c2r(Tensor x, int[] dim, int normalization, SymInt last_dim_size)",
    aten._fft_c2c.default: "fft_c2c(Tensor x, SymInt[] dim, int normalization, bool forward)",
    aten.mm.default: "mm_of_pairs(Tensor x, Tensor y)",
    aten.bmm.default: "bmm_of_pairs(Tensor x, Tensor y)",
}
_FROM_REAL, _TO_REAL = aten._fft_r2c.default, aten._fft_c2r.default


def _on_pairs(call: Callable) -> Callable:
    """`call` of pairs in the place of complex numbers."""

    def run(*args):
        if call is not _FROM_REAL:
            args = [torch.view_as_complex(a) if isinstance(a, torch.Tensor) else a for a in args]
        made = call(*args)
        return made if call is _TO_REAL else torch.view_as_real(made)

    return run


CALLS: dict[str, Callable] = {}
ON_PAIRS: dict[object, object] = {}
for _call, _signature in _SIGNATURES.items():
    _name, _run = _signature.partition("(")[0], _on_pairs(_call)
    _library.define(f"{_signature} -> Tensor")
    _library.impl(_name, _run, "CompositeExplicitAutograd")
    torch.library.register_fake(f"torchweld::{_name}", _run, lib=_library)
    CALLS[f"torchweld.{_name}.default"] = _run
    ON_PAIRS[_call] = getattr(_ops, _name).default
