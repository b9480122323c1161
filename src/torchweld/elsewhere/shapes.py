"""Targets without data: first on torch's meta device, where types are converted, then as fake
tensors on the device that is planned for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import nn

from torchweld.elsewhere.data import Asked
from torchweld.zoo import models, targets
from torchweld.zoo.chosen import USUAL_DTYPE, is_file

_META = "meta"
Fake = Callable[[torch.Tensor], torch.Tensor]


def without_data(asked: Asked, kind: str) -> targets.Target:
    """A model of the zoo at its size for `kind` (cpu or cuda), made without weights; or what a
    user's function returns, which may make its weights on the meta device too."""
    if is_file(asked.target):
        dtype = getattr(torch, asked.dtype) if asked.dtype else None
        return targets.load_target(asked.target, dtype=dtype, device=_META, train=asked.train)
    dtype, size = getattr(torch, asked.dtype or USUAL_DTYPE[kind]), "tiny" if asked.tiny else kind
    return models.load(asked.target, size, dtype=dtype, device=_META, train=asked.train)


def on_device(target: targets.Target, device: str) -> targets.Target:
    """`target` with fake tensors on `device` in the place of those without data; what was one
    tensor still is. To be called where tensors are fake."""
    known: dict[int, torch.Tensor] = {}

    def fake(value):
        if not isinstance(value, torch.Tensor) or value.device.type != _META:
            return value
        if id(value) not in known:
            known[id(value)] = _like(value, device)
        return known[id(value)]

    _move(target.model, fake)
    args = tuple(fake(a) for a in target.args)
    return replace(target, args=args, kwargs={k: fake(v) for k, v in (target.kwargs or {}).items()})


def _like(value: torch.Tensor, device: str) -> torch.Tensor:
    made = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=device)
    if isinstance(value, nn.Parameter):
        return nn.Parameter(made, requires_grad=value.requires_grad)
    return made


def _move(model: nn.Module, fake: Fake) -> None:
    for module in model.modules():
        own = (module.named_parameters, module.named_buffers)
        for name, value in [pair for each in own for pair in each(recurse=False)]:
            setattr(module, name, fake(value))
