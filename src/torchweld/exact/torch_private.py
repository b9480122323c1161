"""The private names of torch that `exact` uses: the samples by which PyTorch tests its operators
and its modules.

`tests/pure/test_campaign.py` says what is expected of it; it fails on a release that moves it.
"""

from __future__ import annotations

import sys
import unittest
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from types import ModuleType

import torch
import torch.utils._python_dispatch

DispatchMode = torch.utils._python_dispatch.TorchDispatchMode  # told of each operation of ATen


@cache
def operator_samples() -> tuple:
    """PyTorch's OpInfo records, in its order: each has `name`, `variant_test_name`, `op` (what to
    call), `dtypes`, and what `samples_of` takes. The module takes seconds to import."""
    _without_expecttest()
    from torch.testing._internal.common_methods_invocations import op_db

    return tuple(op_db)


def samples_of(operator, dtype: torch.dtype) -> Iterator:
    """What `operator.sample_inputs("cpu", dtype, requires_grad=False)` yields where no unit test
    asks: records with `input`, `args` and `kwargs`. Torch looks for that test through all frames
    of the stack, and reads their sources: a third of the time of a campaign."""
    from torch.testing._internal.common_utils import SEED, set_rng_seed

    made = operator.sample_inputs_func(operator, "cpu", dtype, False)

    def seeded() -> Iterator:
        samples, end = iter(made), object()
        while set_rng_seed(SEED) or (sample := next(samples, end)) is not end:
            yield sample

    return seeded()


@cache
def module_samples() -> tuple:
    """PyTorch's ModuleInfo records, in its order: each has `name` ("nn.Linear"), `module_cls`, and
    `module_inputs_func(record, device, dtype, requires_grad, training)`, which gives records with
    `constructor_input` and `forward_input`, each with `args` and `kwargs`."""
    _without_expecttest()
    from torch.testing._internal.common_modules import module_db

    return tuple(module_db)


def _without_expecttest() -> None:
    """The module derives a class from that package's, for tests that are not run here."""
    if "expecttest" not in sys.modules and find_spec("expecttest") is None:
        stand_in = ModuleType("expecttest")
        stand_in.TestCase = unittest.TestCase
        sys.modules["expecttest"] = stand_in
