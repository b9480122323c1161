"""The private parts of torch that every layer uses. Importing them does not import Dynamo.

`tests/pure/test_core_private.py` says which names and why."""

from __future__ import annotations

import contextlib

import torch
from torch.autograd import forward_ad
from torch.utils._python_dispatch import _disable_current_modes

pytree = torch.utils._pytree  # arguments and results as torch.export arranges them


def without_modes() -> contextlib.AbstractContextManager:
    """Real tensors inside a trace: no fake mode, no functionalisation, no proxies."""
    return _disable_current_modes()


def in_forward_ad() -> bool:
    """Whether derivatives are computed along with values (forward mode). Tensors may carry them
    then, which kernels do not see."""
    return forward_ad._current_level >= 0


_INCLUDED = torch._C._dispatch_tls_local_include_set()
_EXCLUDED = torch._C._dispatch_tls_local_exclude_set()


def above_autograd() -> contextlib.AbstractContextManager:
    """Calls inside pass through autograd, as in the user's code, where torch itself or a compiled
    graph had gone below it."""
    return torch._C._ForceDispatchKeyGuard(_INCLUDED, _EXCLUDED)
