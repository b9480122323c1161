"""What users do to the weights of a module between its calls."""

from __future__ import annotations

import torch


def in_place(model: torch.nn.Module) -> None:
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            tensor.mul_(1.1)


def swapped(model: torch.nn.Module) -> None:
    for parameter in model.parameters():
        parameter.data = parameter.data * 0.9


def loaded(model: torch.nn.Module) -> None:
    model.load_state_dict(_scaled(model))


def assigned(model: torch.nn.Module) -> None:
    model.load_state_dict(_scaled(model), assign=True)


def _scaled(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: value * 0.8 for name, value in model.state_dict().items()}
