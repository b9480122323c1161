"""What every tier shares: a fresh cache, the same random numbers, and GPU tests only where there is
a GPU."""

from __future__ import annotations

import gc
import os
import tempfile
from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from slow_files import SLOW_FILES

# What Inductor does before its first kernel, and no test is about: a program for each set of vector
# instructions, to see whether they run, headers compiled ahead, and a pool of processes.
INDUCTOR = {
    "TORCHINDUCTOR_VEC_ISA_OK": "1",
    "TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS": "0",
    "TORCHINDUCTOR_COMPILE_THREADS": "1",
}


def pytest_configure(config: pytest.Config) -> None:
    """One cache for all workers of a run, and plans that repeat: set before any test imports
    torchweld. Hypothesis draws the same in each run, however slow the machine is."""
    settings.register_profile(
        "same", derandomize=True, deadline=None, database=None,
        suppress_health_check=[HealthCheck.too_slow],
    )  # fmt: skip
    settings.load_profile("same")
    os.environ.setdefault("TORCHWELD_CALIBRATE", "off")
    for name, value in INDUCTOR.items():
        os.environ.setdefault(name, value)
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
    gc.set_threshold(1000, 10, 100)  # a full one each million objects; each 70,000 took 5 %


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector):
    """tests/gpu needs a GPU. Without one, each file is one test, which is skipped."""
    if module_path.parent.name == "gpu" and _capability() is None:
        return _Skipped.from_parent(parent, path=module_path)
    return None


class _Skipped(pytest.Module):
    def collect(self):
        yield _Import.from_parent(self, name="import")


class _Import(pytest.Item):
    """The file is imported all the same: what it needs of the rest is still there."""

    def runtest(self) -> None:
        assert self.parent.obj is not None
        pytest.skip(f"{self.path.name} needs an NVIDIA GPU")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What is marked `hopper` needs a GPU of that generation."""
    for item in items:
        if item.path.stem in SLOW_FILES:
            item.add_marker("slow")
        if "hopper" in item.keywords and (_capability() or (9,))[0] != 9:
            item.add_marker(pytest.mark.skip(reason="needs a Hopper GPU"))


@cache
def _capability() -> tuple[int, int] | None:
    import torch

    return torch.cuda.get_device_capability() if torch.cuda.is_available() else None
