"""Whether example inputs fit a model: told where they are given, not at a later call."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from torchweld.capture.torch_private import calls_forward_alone, hooks_of_all_modules
from torchweld.core.errors import UsageError, one_line

_OF_OPERATIONS = (RuntimeError, TypeError, ValueError, IndexError, AttributeError, KeyError)
_ADVICE = "give a tensor, a tuple of arguments, or a dict of keyword arguments"


def check_signature(target: Callable, args: tuple, kwargs: dict) -> None:
    """Errors: UsageError if `target` does not take so many arguments, or none of these names."""
    if isinstance(target, torch.nn.Module):
        if not calls_forward_alone(target) or hooks_of_all_modules():
            return  # hooks may bring the arguments into shape
        target = target.forward
    try:
        signature = inspect.signature(target, follow_wrapped=False)
    except (TypeError, ValueError):  # a function of torch's without one
        return
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        name = getattr(target, "__qualname__", type(target).__name__)
        raise UsageError(f"the example inputs do not fit {name}: {error}", do=_ADVICE) from None


def check_runs(model: torch.nn.Module, args: tuple, kwargs: dict, found: Exception) -> None:
    """For a capture that ended in `found`. Errors: UsageError if a call in eager fails, too.

    The call is made only where an operation itself has failed, so that a model that cannot be
    exported is not called. Buffers and random numbers are as before.
    """
    if type(found) not in _OF_OPERATIONS:
        return
    try:
        with torch.no_grad(), torch.random.fork_rng(), _buffers_kept(model):
            model(*args, **kwargs)
    except Exception as error:
        what = f"{type(model).__name__} does not run with the example inputs: {one_line(error)}"
        raise UsageError(what, do=_ADVICE) from error


@contextmanager
def _buffers_kept(model: torch.nn.Module) -> Iterator[None]:
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    try:
        yield
    finally:
        for name, buffer in model.named_buffers():
            if name in before and buffer.shape == before[name].shape:
                buffer.copy_(before[name])
