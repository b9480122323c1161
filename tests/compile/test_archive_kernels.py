"""Kernels of a GPU in an archive: what the driver is told, without a GPU."""

from __future__ import annotations

import sys
import zipfile
from types import SimpleNamespace

import pytest

pytest.importorskip("triton")

from torchweld.core.errors import BuildError, UsageError
from torchweld.deploy.archive import Writer
from torchweld.deploy.gpu import GpuShipper
from torchweld.deploy.records import decoded, encoded
from torchweld.runtime import cubin, triton_compile
from torchweld.runtime.copies import copy_source
from torchweld.runtime.cubin import DriverKernel
from torchweld.runtime.odd_rows import move_for, move_source
from torchweld.runtime.triton_compile import _launcher

SOURCE = copy_source(2, vectors=True)


@pytest.fixture
def shipped(tmp_path):
    """(binaries, their codes) of a kernel, as they come out of a manifest."""
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as out:
        shipper = GpuShipper(Writer(out), sizes_vary=True)
        assert shipper.add(_launcher(SOURCE, 90)) == 0
    binaries = decoded(encoded(tuple(shipper.kernels)))[0]
    with zipfile.ZipFile(tmp_path / "a.zip") as archive:
        return binaries, {name: archive.read(name) for name in archive.namelist()}


@pytest.fixture
def driver(monkeypatch):
    """What the driver is asked for; functions are numbers from 100 on."""
    asked = []

    def call(name, *args):
        asked.append((name, args))
        if name == "cuModuleGetFunction":
            args[0]._obj.value = 100 + len(asked)

    monkeypatch.setattr(cubin, "_call", call)
    monkeypatch.setattr(cubin.torch, "empty", lambda *size, **others: None)
    return asked


def test_each_alignment_has_its_binary(shipped):
    binaries, codes = shipped
    assert [b.unaligned for b in binaries] == [(), (0, 1, 2, 3)]
    assert all(codes[b.code][:4] == b"\x7fELF" and b.name == "copy2" for b in binaries)
    assert binaries[0].handle.threads == 128 and binaries[0].handle.function == 0


def test_a_binary_that_takes_the_addresses_is_started(shipped, driver):
    kernel = DriverKernel(SOURCE, *shipped)
    first = kernel.handle(0)
    assert first.function > 100 and first is kernel.handle(0)
    kernel((1, 2, 1), 7, [16, 32, 48, 64, 100, 100, 4096], device=0)
    kernel((1, 2, 1), 7, [16, 33, 48, 64, 100, 100, 4096], device=0)
    started = [args for name, args in driver if name == "cuLaunchKernel"]
    assert [args[1:7] for args in started] == [(1, 2, 1, 128, 1, 1)] * 2
    assert started[0][0].value == first.function != started[1][0].value
    assert len([name for name, _ in driver if name == "cuModuleLoadData"]) == 2


def test_other_addresses_are_refused(shipped, driver):
    binaries, codes = shipped
    kernel = DriverKernel(SOURCE, binaries[:1], codes)
    with pytest.raises(UsageError, match="multiples of 16"):
        kernel((1, 2, 1), 7, [16, 33, 48, 64, 100, 100, 4096], device=0)


def test_what_is_provided_is_not_compiled(monkeypatch):
    monkeypatch.setattr(triton_compile, "_PROVIDED", {})
    provided = SimpleNamespace()
    triton_compile.provide(SOURCE, provided)
    assert triton_compile.compile_triton(copy_source(2, vectors=True)) is provided


def test_a_source_is_the_same_after_a_manifest():
    for source in (SOURCE, move_for(50257, 2)):
        assert decoded(encoded((source, 3))) == (source, 3)


def test_without_triton_a_kernel_is_a_build_error(monkeypatch):
    monkeypatch.setitem(sys.modules, "triton.compiler", None)
    with pytest.raises(BuildError, match="no Triton"):
        triton_compile.compile_source(SOURCE, 90)


def test_the_source_that_moves_rows_is_known_before_a_call():
    assert move_for(50257, 2) == move_source(50304, 50256, 50257)
