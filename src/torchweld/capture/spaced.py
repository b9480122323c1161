"""`linspace` and `logspace` between tensors of one device, on another: calls, as torch's
decomposition calculates with both (`torch.linspace(start_on_the_gpu, 1, 5)` gives a tensor on the
CPU)."""

from __future__ import annotations

from functools import cache

import torch

from torchweld.capture import torch_private

aten = torch.ops.aten
_core = cache(torch_private.core_decompositions)


def _on_one_device(op):
    def spaced(*args, device=None, **kwargs):
        kind = torch.device(device or "cpu").type
        if any(isinstance(a, torch.Tensor) and a.device.type != kind for a in args):
            return NotImplemented
        return _core()[op](*args, device=device, **kwargs)

    return spaced


DECOMPOSITIONS = {
    op: _on_one_device(op)
    for packet in (aten.linspace, aten.logspace)
    for op in (packet.Tensor_Tensor, packet.Tensor_Scalar, packet.Scalar_Tensor)
}
