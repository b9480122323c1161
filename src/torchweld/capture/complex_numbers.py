"""Products of complex numbers on a CPU, in real ones: rotary embeddings are often written so.

    view_as_real(view_as_complex(x) * w)   ->   (x0, x1) w0 + (x1, x0) (-w1, w1), a kernel

The numbers between become pairs and complex again; where both steps meet, `returned_pairs` finds
that nothing was done.
"""

from __future__ import annotations

import torch

aten = torch.ops.aten
_PAIRS = (aten.view_as_real.default, aten.view_as_real_copy.default)
_COMPLEX = (aten.view_as_complex.default, aten.view_as_complex_copy.default)


def product(a, b):
    """a * b of two complex tensors on a CPU; everything else stays as it is."""
    if not all(isinstance(t, torch.Tensor) and _is_plain(t) for t in (a, b)):
        return NotImplemented
    x, y = torch.view_as_real(a), torch.view_as_real(b)
    signs = torch.arange(-1, 2, 2, dtype=x.dtype, device=x.device)
    return torch.view_as_complex(x * y[..., :1] + x.flip(-1) * (y[..., 1:] * signs))


def _is_plain(t: torch.Tensor) -> bool:
    return t.is_complex() and t.device.type == "cpu" and not t.is_conj()


def returned_pairs(node: torch.fx.Node) -> torch.fx.Node | None:
    """x where `node` is view_as_real(view_as_complex(x))."""
    if node.target not in _PAIRS or node.args[0].target not in _COMPLEX:
        return None
    return node.args[0].args[0]


def is_passed_by(node: torch.fx.Node) -> bool:
    """Whether `node` makes complex numbers of which all that read them make pairs again."""
    return node.target in _COMPLEX and all(user.target in _PAIRS for user in node.users)


DECOMPOSITIONS = {aten.mul.Tensor: product}
