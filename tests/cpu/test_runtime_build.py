"""Compiling C++ kernels: once for equal sources, also between processes that start together."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest

from forked import Forked
from torchweld.codegen.source import BufferArg, KernelBundle, KernelSource
from torchweld.core.errors import BuildError, EnvironmentProblem
from torchweld.core.options import Options
from torchweld.runtime import build, dispatch, native
from torchweld.runtime.build import compile_cpp, load_function
from torchweld.runtime.cache import Artifacts
from torchweld.runtime.load import Compilers, _compile_ahead, load_kernels

SEVEN = 'extern "C" int seven() { return 7; }\n'


def call(path: Path, name: str) -> int:
    return ctypes.CFUNCTYPE(ctypes.c_int)(load_function(path, name))()


@pytest.fixture
def artifacts(tmp_path) -> Artifacts:
    return Artifacts(tmp_path)


def test_compiled_once_and_found_again(artifacts):
    path, fresh = compile_cpp(SEVEN, artifacts)
    assert fresh
    assert call(path, "seven") == 7
    assert compile_cpp(SEVEN, artifacts) == (path, False)


def test_a_damaged_library_is_compiled_again_before_it_is_loaded(artifacts):
    source = SEVEN.replace("7", "8")
    path, _ = compile_cpp(source, artifacts)
    path.write_bytes(path.read_bytes()[: 1 << 12])
    assert compile_cpp(source, artifacts) == (path, True)
    assert call(path, "seven") == 8


def test_the_compilers_words_are_in_the_error(artifacts):
    with pytest.raises(BuildError, match="nonsense"):
        compile_cpp("nonsense here;", artifacts)


def test_no_compiler_is_said_so(artifacts, monkeypatch):
    monkeypatch.setenv("CXX", "/nonexistent/compiler")
    build.find_compiler.cache_clear()
    try:
        with pytest.raises(EnvironmentProblem, match="CXX"):
            compile_cpp(SEVEN, artifacts)
    finally:
        build.find_compiler.cache_clear()


def test_a_warm_cache_needs_no_compiler(artifacts, monkeypatch, tmp_path):
    path, _ = compile_cpp(SEVEN, artifacts)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(build, "find_compiler", build.find_compiler.__wrapped__)
    assert compile_cpp(SEVEN, artifacts) == (path, False)
    with pytest.raises(EnvironmentProblem, match="no C"):
        compile_cpp(SEVEN.replace("7", "9"), artifacts)


def test_what_the_binary_depends_on_is_in_its_key(artifacts, monkeypatch):
    first, _ = compile_cpp(SEVEN, artifacts)
    monkeypatch.setattr(build, "cpu_identity", lambda: ("another machine",))
    assert compile_cpp(SEVEN, artifacts)[0] != first


def test_equal_kernels_of_repeated_layers_are_compiled_once(artifacts, monkeypatch):
    compiled = []
    original = build._run
    monkeypatch.setattr(build, "_run", lambda *a: (compiled.append(a), original(*a)))
    bundles = {
        f"k{i}": KernelBundle(
            f"k{i}", (KernelSource("cpp", "seven", SEVEN, (BufferArg(f"b{i}"),)),)
        )
        for i in range(5)
    }
    functions = load_kernels(bundles, artifacts, Options())
    assert len(compiled) == 1
    assert len(functions) == 5
    assert len(set(functions.values())) == 1


def test_a_kernel_that_was_begun_is_not_compiled_again(artifacts, monkeypatch):
    compiled = []
    original = build._run
    monkeypatch.setattr(build, "_run", lambda *a: (compiled.append(a), original(*a)))
    bundle = KernelBundle("k", (KernelSource("cpp", "seven", SEVEN, (BufferArg("b"),)),))
    with Compilers(artifacts, 2) as compilers:
        compilers.start(bundle)
        functions = compilers.functions({"k": bundle, "same": bundle})
    assert len(compiled) == 1 and list(functions) == [bundle.sources[0]]


def test_work_that_is_not_waited_for_is_dropped(artifacts):
    """What stops the pipeline is not held up, nor is its error replaced by a compiler's."""
    broken = KernelBundle("k", (KernelSource("cpp", "f", "nonsense", ()),))
    with pytest.raises(KeyError), Compilers(artifacts, 1) as compilers:
        compilers.start(broken)
        raise KeyError("a later stage")


def test_what_every_program_needs_is_compiled_ahead(artifacts):
    _compile_ahead(artifacts)
    before = set(artifacts.root.rglob("*.so"))
    native.native_library(artifacts), dispatch.library(artifacts)
    assert set(artifacts.root.rglob("*.so")) == before and len(before) == 2


def test_nothing_is_compiled_ahead_without_a_compiler(artifacts, monkeypatch):
    monkeypatch.setenv("CXX", "/nonexistent/compiler")
    build.find_compiler.cache_clear()
    try:
        _compile_ahead(artifacts)
    finally:
        build.find_compiler.cache_clear()
    assert not list(artifacts.root.rglob("*.so"))


def seven(tell, root: Path) -> None:
    original = build._run
    build._run = lambda *args: (tell("compiled"), original(*args))
    path, _ = build.compile_cpp(SEVEN, Artifacts(root))
    tell(call(path, "seven"))


def test_processes_with_one_cold_cache_compile_once(tmp_path):
    root = tmp_path / "cache"
    root.mkdir(mode=0o700)
    told = [worker.rest() for worker in [Forked(seven, root) for _ in range(2)]]
    assert sorted(told, key=len) == [[7], ["compiled", 7]]
