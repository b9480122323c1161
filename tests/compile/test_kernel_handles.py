"""A kernel that the runtime's own table launches is loaded without Triton's launcher, whose C code
is compiled for each signature."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

pytest.importorskip("triton")

from triton.runtime import driver

from torchweld.runtime.odd_rows import move_source
from torchweld.runtime.triton_compile import _launcher


@pytest.fixture
def loads(monkeypatch):
    """What is given to the driver to load."""
    found = []

    def load_binary(*given):
        found.append(given)
        return 1, 4242, 30, 0, 1024  # module, function, registers, spills, threads

    monkeypatch.setattr(driver, "_active", SimpleNamespace(
        utils=SimpleNamespace(load_binary=load_binary)))  # fmt: skip
    return found


def test_it_is_loaded_once_for_a_device(loads):
    launcher = _launcher(move_source(50304, 50256, 50257), 90)
    first = launcher.handle(0)
    assert first.function == 4242 and first.threads == 128 and first is launcher.handle(0)
    launcher.handle(1)
    assert [(name, device) for name, *_, device in loads] == [("move_rows", 0), ("move_rows", 1)]
