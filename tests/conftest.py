"""What every tier shares: a fresh cache, the same random numbers, and GPU tests only where there is
a GPU."""

from __future__ import annotations

import gc
import os
import tempfile
from pathlib import Path

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """One cache for all workers of a run, and plans that repeat: set before any test imports
    torchweld."""
    os.environ.setdefault("TORCHWELD_CALIBRATE", "off")
    if "TORCHWELD_CACHE_DIR" not in os.environ:
        os.environ["TORCHWELD_CACHE_DIR"] = tempfile.mkdtemp(prefix="torchweld-test-cache-")
        config.add_cleanup(_remove_cache)


def _remove_cache() -> None:
    import shutil

    shutil.rmtree(os.environ.pop("TORCHWELD_CACHE_DIR"), ignore_errors=True)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """The same random numbers in each run, whichever tests run before. Without a GPU, of the CPU's
    generator alone: for absent devices torch keeps a list, with the stack of each call."""
    import torch

    seed = torch.manual_seed if torch.cuda.is_available() else torch.default_generator.manual_seed
    seed(0)


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    _let_be_what_lives()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None):
    """After each file: models import hundreds of modules while tests run."""
    result = yield
    if nextitem is None or nextitem.path != item.path:
        _let_be_what_lives()
    return result


def _let_be_what_lives() -> None:
    """A million objects of torch and of the tests live to the end. Garbage is not looked for among
    them: each full collection takes half a second otherwise, a thirteenth of the whole run."""
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """tests/gpu needs a GPU, what is marked `hopper` there one of that generation."""
    capability = _capability()
    for item in items:
        if "gpu" in Path(item.path).parts and capability is None:
            item.add_marker(pytest.mark.skip(reason="needs an NVIDIA GPU"))
        elif "hopper" in item.keywords and capability[0] != 9:
            item.add_marker(pytest.mark.skip(reason="needs a Hopper GPU"))


def _capability() -> tuple[int, int] | None:
    import torch

    return torch.cuda.get_device_capability() if torch.cuda.is_available() else None
