"""Fixtures of the folders whose tests need no compiler: their conftest.py imports them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> Iterator[None]:
    """On small tensors, threads that wait for each other cost seconds on a busy machine. And Dynamo
    does not time guards, here not for others either: 24 ms of a compilation."""
    import torch

    from torchweld.capture.torch_private import time_guards

    time_guards(False)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
    time_guards(True)


@pytest.fixture(autouse=True)
def without_a_compiler(monkeypatch):
    """What a fused object compiles ahead costs a second."""
    monkeypatch.setenv("CXX", "no compiler here")
