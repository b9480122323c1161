"""What a command is asked to look at: a model of the zoo by name, or one from a user's file."""

from __future__ import annotations

import torch

from torchweld.zoo import models, targets

USUAL_DTYPE = {"cpu": "float32", "cuda": "bfloat16"}


def chosen_target(
    target: str, device: str, dtype: str | None, train: bool, seed: int, tiny: bool
) -> targets.Target:
    """Of the zoo by name, at the size for the device or a tiny one, or from a user's file."""
    if is_file(target):
        wanted = getattr(torch, dtype) if dtype else None
        return targets.load_target(target, dtype=wanted, device=device, train=train)
    wanted, size = getattr(torch, dtype or USUAL_DTYPE[device]), "tiny" if tiny else device
    return models.load(target, size, dtype=wanted, device=device, train=train, seed=seed)


def is_file(target: str) -> bool:
    """Whether a target is a function in a file, and none of the zoo."""
    return ":" in target or target.endswith(".py")
