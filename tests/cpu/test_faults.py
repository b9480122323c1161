"""Faults from outside: whatever fails, results are right or eager's, there is one warning for each
cause, and the next call works."""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
import os
import stat
import threading
import warnings
import weakref
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import torchweld
from own_cache import with_runtime
from storm import storm
from threads import in_threads
from torchweld import pipeline
from torchweld.core import events
from torchweld.core.errors import BuildError
from torchweld.runtime import build, cache, load, memory, steps
from torchweld.runtime.cache import Artifacts
from torchweld.runtime.load import Compilers
from torchweld.runtime.program import MAX_SHAPES

X, W = torch.randn(33, 70, generator=torch.Generator().manual_seed(0)), torch.ones(70)


def layer(x, w):
    y = x.softmax(1) * w
    return F.layer_norm(y + x, (70,)), y.sum(0)


def is_right(found, x=X, w=W) -> bool:
    exact = layer(x.double(), w.double())
    return all(float((a - b).norm() / b.norm()) < 1e-6 for a, b in zip(found, exact))


@contextmanager
def told():
    """The warnings of torchweld, each cause as new."""
    events.clear()
    with warnings.catch_warnings(record=True) as all_told:
        warnings.simplefilter("always")
        found: list[str] = []
        yield found
    ours = [w for w in all_told if issubclass(w.category, torchweld.TorchweldWarning)]
    found.extend(str(w.message) for w in ours)


@pytest.fixture
def empty(tmp_path, monkeypatch):
    """A cache of its own, and nothing captured."""
    root = tmp_path / "cache"
    monkeypatch.setenv("TORCHWELD_CACHE_DIR", str(root))
    torch._dynamo.reset()
    build.find_compiler.cache_clear(), build.compiler_identity.cache_clear()
    yield root
    torch._dynamo.reset()
    build.find_compiler.cache_clear(), build.compiler_identity.cache_clear()


@pytest.fixture
def prepared(tmp_path):
    return with_runtime(tmp_path / "cache")


@pytest.fixture
def fresh(prepared, empty):
    """The same with the runtime's own libraries, which are taken before."""
    return empty


def compiled() -> tuple:
    torch._dynamo.reset()
    return torchweld.fuse(layer)(X, W)


# -- processes, files, compilers --


def test_processes_killed_at_random_leave_a_cache_that_works(tmp_path):
    """Eight here; python tests/storm.py starts 64."""
    found = storm(8, 0, tmp_path)
    assert found.wrong == [] and found.after == "right"
    assert found.killed + found.right == 8


def replaced(path: Path, content: bytes) -> None:
    """Not in place: this process runs the code that is there."""
    path.unlink()
    path.write_bytes(content)


def truncated(path: Path) -> None:
    replaced(path, path.read_bytes()[:100])


def flipped(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    replaced(path, bytes(content))


def emptied(path: Path) -> None:
    replaced(path, b"")


def of_all(path: Path) -> None:
    path.chmod(0o666)


def unreadable(path: Path) -> None:
    path.chmod(0)


def a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("damage", [truncated, flipped, emptied, of_all, unreadable])
def test_damaged_entries_are_made_again(fresh, damage):
    compiled()
    entries = [p for p in fresh.rglob("*") if p.is_file() and p.suffix != ".lock"]
    kinds = {p.suffix for p in entries}
    assert ".so" in kinds and len(kinds) >= 2
    for path in entries:
        damage(path)
    with told() as warned:
        assert is_right(compiled())
    assert warned == []
    assert any(cache._content(p) is not None for p in entries if p.suffix == ".so")


def test_a_folder_in_the_place_of_an_entry(fresh):
    compiled()
    for path in [p for p in fresh.rglob("*.so")]:
        a_folder(path)
    with told() as warned:
        assert is_right(compiled())
    assert len(warned) <= 1


def test_entries_of_another_user_are_not_read(tmp_path, monkeypatch):
    artifacts, wrote = Artifacts(tmp_path), []
    artifacts.put("k" * 40, ".x", b"theirs")
    original = os.fstat
    monkeypatch.setattr(cache.os, "fstat", lambda f: _of_another(original(f)))
    assert artifacts.get("k" * 40, ".x") is None
    artifacts.make("k" * 40, ".x", lambda path: (wrote.append(1), path.write_bytes(b"ours")))
    assert wrote == [1]


def _of_another(status: os.stat_result) -> os.stat_result:
    fields = list(status)
    fields[stat.ST_UID] += 1
    return os.stat_result(fields)


def full(*_):
    raise OSError(28, "No space left on device")


def test_a_full_disk_costs_the_cache_alone(empty, monkeypatch):
    """What is compiled goes to a folder of this process."""
    original = Artifacts._publish
    monkeypatch.setattr(
        Artifacts, "_publish",
        lambda self, *a: full() if self.root == empty else original(self, *a),
    )  # fmt: skip
    with told() as warned:
        fused = torchweld.fuse(layer)
        assert is_right(fused(X, W))
    assert len(warned) == 1 and "No space left" in warned[0]
    assert not list(empty.rglob("*.so"))


def test_no_room_anywhere(empty, monkeypatch):
    monkeypatch.setattr(Artifacts, "_publish", full)
    with told() as warned:
        assert is_right(compiled())
    assert any("No space left" in w for w in warned)
    assert len(warned) == len(set(warned))


COMPILERS = {
    "fails": "exit 1",
    "dies": "kill -9 $$",
    "says nothing": "exit 0",
    "writes nonsense": 'while [ "$1" != -o ]; do shift; done; echo nonsense > "$2"',
    "hangs": "sleep 600 & wait",
}


@pytest.mark.parametrize("kind", [*COMPILERS, "missing", "no program"])
def test_compilers_that_fail(fresh, tmp_path, monkeypatch, kind):
    """Kernels run as separate operations; a compiler that works is used by the next process."""
    program = tmp_path / "g++"
    if kind in COMPILERS:
        asked = '[ "$1" = --version ] && echo 1 && exit'
        program.write_text(f"#!/bin/sh\n{asked}\n{COMPILERS[kind]}\n")
        program.chmod(0o755)
    elif kind == "no program":
        program.write_bytes(b"\x7fELF nonsense")
        program.chmod(0o755)
    monkeypatch.setenv("CXX", str(program))
    monkeypatch.setattr(build, "_COMPILE_SECONDS", 0.3)
    with told() as warned:
        assert is_right(compiled())
    assert warned and len(warned) == len(set(warned))
    kept = [p for p in fresh.rglob("*.so") if b"nonsense" in p.read_bytes()]
    assert len(kept) <= 2  # compiled ahead; they go when they are loaded


def test_a_compiler_that_hangs_leaves_no_process(tmp_path, monkeypatch):
    program = tmp_path / "g++"
    program.write_text(f"#!/bin/sh\necho $$ > {tmp_path}/first\nsleep 600 & wait\n")
    program.chmod(0o755)
    with pytest.raises(BuildError, match="took more than"):
        build._finished([str(program)], 0.5)
    first = int((tmp_path / "first").read_text())
    assert [s for s in map(_state, Path("/proc").glob("[0-9]*/stat")) if s == first] == []


def _state(path: Path) -> int | None:
    """The group of a process that runs; None of one that has ended."""
    with suppress(OSError):
        state, _, group = path.read_text().rpartition(")")[2].split()[:3]
        return None if state == "Z" else int(group)
    return None


# -- memory, interrupts --


class Failing:
    """Raises `error` at call number `at` of what it stands before; not in the thread that compiles
    ahead."""

    def __init__(self, error: BaseException) -> None:
        self.error, self.at, self.calls = error, -1, 0

    def before(self, function):
        def call(*args, **kwargs):
            if threading.current_thread().name == "torchweld-begin":
                return function(*args, **kwargs)
            self.calls += 1
            if self.calls - 1 == self.at:
                raise self.error
            return function(*args, **kwargs)

        return call


@pytest.mark.parametrize("error", [MemoryError("none"), torch.OutOfMemoryError("none")], ids=repr)
def test_memory_that_ends_at_each_allocation_of_a_run(fresh, monkeypatch, error):
    """The call fails as eager's would, or is made once more; the next one is right."""
    failing = Failing(error)
    made = steps.strided_maker
    monkeypatch.setattr(steps, "strided_maker", lambda *a: failing.before(made(*a)))
    monkeypatch.setattr(memory, "Arena", _failing_arena(failing))

    def chain(x, w):
        return (layer(x, w)[0] @ torch.ones(70, 70)).exp(), x.sum(0)

    fused, x = torchweld.fuse(chain), X.clone()
    wanted = fused(x, W)
    failing.calls = 0
    fused(x, W)
    count = failing.calls
    assert count >= 2
    with told():
        for at in range(count):
            failing.at, failing.calls = at, 0
            try:
                found = fused(x, W)
            except type(error):
                failing.at = -1
                found = fused(x, W)
            assert all(torch.equal(a, b) for a, b in zip(found, wanted)) and torch.equal(x, X)


def _failing_arena(failing: Failing):
    class Arena(memory.Arena):
        def __init__(self, *args) -> None:
            failing.before(lambda: None)()
            super().__init__(*args)

    return Arena


STAGES = [
    (pipeline, "lower"), (pipeline, "kernels_of"), (pipeline, "load"), (load, "_load_one"),
    (Artifacts, "_publish"), (Compilers, "functions"), (steps, "new_tensor"),
]  # fmt: skip


@pytest.mark.parametrize("place, name", STAGES, ids=[name for _, name in STAGES])
def test_an_interrupt_at_each_stage(fresh, monkeypatch, place, name):
    """It comes through, and the same object works when it is called again."""
    failing = Failing(KeyboardInterrupt())
    failing.at = 0
    monkeypatch.setattr(place, name, failing.before(getattr(place, name)))
    fused = torchweld.fuse(layer)
    with told() as warned:
        with pytest.raises(KeyboardInterrupt):
            fused(X, W)
        assert is_right(fused(X, W))
    assert failing.calls > 0 and warned == []


# -- processes and threads of the user --


def test_a_forked_process_calls_and_compiles(fresh):
    fused = torchweld.fuse(layer)
    fused(X, W)
    context = multiprocessing.get_context("fork")
    said = context.SimpleQueue()

    def child() -> None:
        torch.set_num_threads(1)
        again = torchweld.fuse(lambda x: x.cos() * 2)
        said.put((is_right(fused(X, W)), torch.allclose(again(X), X.cos() * 2)))

    process = context.Process(target=child, daemon=True)
    process.start()
    process.join(120)
    assert process.exitcode == 0 and said.get() == (True, True)


def test_eight_threads_call_one_object(fresh):
    """From its first call on, each with tensors of its own."""
    fused, right = torchweld.fuse(layer), []

    def work() -> None:
        generator = torch.Generator().manual_seed(threading.get_ident() % 1000)
        for _ in range(20):
            x = torch.randn(33, 70, generator=generator)
            right.append(is_right(fused(x, W), x))

    in_threads(work, 8)
    assert len(right) == 160 and all(right)


@pytest.mark.parametrize("when", ["before", "after"])
def test_an_exception_in_a_hook(fresh, when):
    """It is the user's to see; the next call is right."""
    model = torch.nn.Sequential(torch.nn.Linear(70, 8), torch.nn.ReLU())
    fused, angry = torchweld.fuse(model), [True]

    def hook(*args) -> None:
        if angry:
            raise ValueError("in a hook")

    register = "register_forward_pre_hook" if when == "before" else "register_forward_hook"
    handle = getattr(fused, register)(hook)
    for _ in range(2):
        with pytest.raises(Exception, match="in a hook"):
            fused(X)
    angry.clear()
    torch.testing.assert_close(fused(X), model(X))
    handle.remove()
    torch.testing.assert_close(fused(X), model(X))


# -- growth --


def held() -> tuple[int, int, int]:
    """Kilobytes of memory, open files and threads of this process."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    lines = Path("/proc/self/status").read_text().splitlines()
    rss = next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))
    return rss, len(os.listdir("/proc/self/fd")), threading.active_count()


def test_two_thousand_calls_hold_no_more_than_a_hundred(fresh):
    fused = torchweld.fuse(layer, dynamic=True)
    inputs = [torch.randn(n, 70) for n in range(3, 3 + MAX_SHAPES // 2)]

    def calls(count: int) -> None:
        for k in range(count):
            fused(inputs[k % len(inputs)], W)

    calls(600)
    before = held()
    calls(2000)
    after = held()
    assert after[0] - before[0] < 2000 and after[1:] == before[1:]  # one kilobyte a call


def modules_that_are_dropped(count: int) -> list[weakref.ref]:
    made = []
    for _ in range(count):
        fused = torchweld.fuse(torch.nn.Sequential(torch.nn.Linear(30, 30), torch.nn.GELU()))
        with torch.no_grad():
            fused(torch.ones(4, 30))
        made += [weakref.ref(fused), weakref.ref(fused[0].weight)]
    return made


def test_modules_that_are_dropped_leave_nothing(fresh):
    """Twenty here; 200 hold as little. Torch's own capture keeps 140 KB of text for each."""
    modules_that_are_dropped(2)
    before = held()
    made = modules_that_are_dropped(20)
    assert held()[1:] == before[1:]
    assert [m for m in made if m() is not None] == []
