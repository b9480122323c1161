"""Kernels are compiled in processes that may die."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

pytest.importorskip("triton")

from torchweld.codegen.source import KernelSource
from torchweld.core.errors import BuildError
from torchweld.runtime import triton_compile, triton_worker, triton_workers
from torchweld.runtime.triton_compile import compile_source, launchable, request_for
from torchweld.runtime.triton_worker import NotCached, compiled, request_of
from torchweld.runtime.triton_workers import CannotStart, Workers, _Worker
from triton_cases import add_layer_norm, softmax
from triton_run import bundle_of


@pytest.fixture(autouse=True)
def _empty_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))


@pytest.fixture
def workers():
    """As a process has them, but begun with this environment."""
    made = Workers(2)
    yield made
    made.stop()


def source(rows: int = 100):
    return bundle_of(add_layer_norm(rows, 640)).sources[0]


def test_tritons_own_key_is_told_once_it_is_known(workers):
    compile_source(source(), 90)
    assert triton_worker.own_key() == sys.modules["triton.runtime.cache"].triton_key()
    workers.compile(request_for(source(101), 90))  # by which another finds it
    assert compiled(request_for(source(101), 90), cached=True)


def test_requests_are_lines():
    request = request_for(source(), 90, unaligned=(1,))
    assert request_of(request.line()) == request
    assert "\n" not in request.line()


def test_what_a_worker_compiles_is_what_this_process_would(workers):
    request = request_for(source(), 90)
    with pytest.raises(NotCached):
        compiled(request, cached=True)
    workers.compile(request)
    made = compiled(request, cached=True).asm["ptx"]
    os.environ["TRITON_CACHE_DIR"] += "/other"  # the fixture's, which it takes back
    assert compiled(request).asm["ptx"] == made


def test_no_compiler_runs_in_this_process(workers, monkeypatch):
    monkeypatch.setattr(triton_compile, "compile_aside", workers.compile)
    asked = []
    monkeypatch.setattr(triton_compile, "compiled", lambda r, cached=False: (
        asked.append(cached), compiled(r, cached))[1])  # fmt: skip
    assert compile_source(source(), 90).asm["cubin"]
    compile_source(source(), 90)
    assert asked == [True, False, True]


def test_a_worker_serves_many_and_several_serve_at_a_time(workers):
    requests = [request_for(source(n), 90) for n in range(100, 106)]
    with ThreadPoolExecutor(6) as threads:
        list(threads.map(workers.compile, requests))
    assert all(compiled(r, cached=True) for r in requests)
    assert 1 <= len(workers._idle) <= 2


def test_those_that_are_begun_ahead_are_used(workers):
    workers.begin(1)
    workers.begin(1)
    (first,) = workers._idle
    workers.compile(request_for(source(), 90))
    assert workers._idle == [first]


def test_what_triton_refuses_is_told(workers):
    wrong = request_for(source(), 90)
    wrong = triton_worker.Request(**{
        **{n: getattr(wrong, n) for n in wrong.__slots__}, "text": wrong.text + "\n    tl.nothing()"
    })  # fmt: skip
    with pytest.raises(BuildError, match=r"does not compile for sm_90"):
        workers.compile(wrong)
    workers.compile(request_for(source(), 90))
    assert len(workers._idle) == 1  # the same


FEW_WARPS = """
import triton
import triton.language as tl
from triton.language.extra.cuda import num_warps


@triton.jit
def few(x):
    tl.static_assert({condition})
"""


def of_warps(condition: str, warps: int):
    text = FEW_WARPS.format(condition=condition)
    return KernelSource("triton", "few", text, (), num_warps=warps)


@pytest.mark.parametrize(
    "condition, warps, found",
    [
        ("num_warps() > 1", 1, 2),
        ("num_warps() > 2", 1, 4),
        ("num_warps() != 4", 4, 8),
        ("num_warps() < 4", 4, 2),
    ],
)
def test_where_one_number_of_warps_is_refused_another_is_taken(condition, warps, found):
    """As in Triton 3.6, a pass of which gets kernels wrong for certain numbers of warps."""
    made = compile_source(of_warps(condition, warps), 90)
    assert made.metadata.num_warps == found
    assert launchable(made, of_warps(condition, warps)).threads == 32 * found


def test_what_no_number_of_warps_helps_is_told():
    with pytest.raises(BuildError, match=r"few does not compile for sm_90"):
        compile_source(of_warps("False", 1), 90)


DYING = """
import os, sys
print('null', flush=True)
sys.stdin.readline()
print('x.cpp:7: Assertion `a == b` failed.', file=sys.stderr, flush=True)
os.abort()
"""


def test_one_that_dies_costs_its_kernel_alone(monkeypatch):
    """As of an assertion of LLVM's."""
    begun = []

    def start():
        begun.append(1)
        if len(begun) > 1:
            return _Worker()
        with monkeypatch.context() as dying:
            dying.setattr(triton_workers, "_START", DYING)
            return _Worker()

    workers = Workers(1, start)
    with pytest.raises(BuildError, match=r"died \(signal 6\): x.cpp:7: Assertion"):
        workers.compile(request_for(source(), 90))
    workers.compile(request_for(source(), 90))
    workers.stop()


def test_one_that_has_ended_meanwhile_is_replaced(workers):
    workers.compile(request_for(source(), 90))
    (first,) = workers._idle
    first._process.stdin.close()  # as if it had been idle for long
    assert first._process.wait() == 0
    first._process.stdin = open(os.devnull, "w")  # noqa: SIM115
    workers.compile(request_for(source(101), 90))
    assert workers._idle != [first]


def test_without_workers_this_process_compiles(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    workers = Workers(1)
    with pytest.raises(CannotStart, match="/nowhere/python"):
        workers.compile(request_for(source(), 90))
    monkeypatch.setattr(triton_compile, "compile_aside", workers.compile)
    assert compile_source(source(), 90).asm["cubin"]


def test_a_worker_that_cannot_import_says_so(monkeypatch):
    monkeypatch.setattr(triton_workers, "_START", "import nowhere")
    with pytest.raises(CannotStart, match="No module named 'nowhere'"):
        Workers(1).compile(request_for(source(), 90))


@pytest.mark.parametrize(("program", "said"), [
    ("print('usage: server [options]', flush=True); input()", "is no Python"),
    ("input()", "says nothing"),
])  # fmt: skip
def test_another_program_is_asked_once(program, said, monkeypatch):
    """As `sys.executable` of a server that has Python in it may be."""
    monkeypatch.setattr(triton_workers, "_START", program)
    monkeypatch.setattr(triton_workers, "START_S", 2.0)
    begun = []
    workers = Workers(1, lambda: begun.append(1) or _Worker())
    for _ in range(3):
        with pytest.raises(CannotStart, match=said):
            workers.compile(request_for(source(), 90))
    assert len(begun) == 1


@pytest.mark.parametrize(("name", "value"), [("frozen", True), ("executable", "")])
def test_an_application_is_not_started_again(name, value, monkeypatch):
    monkeypatch.setattr(sys, name, value, raising=False)
    with pytest.raises(CannotStart, match="no Python"):
        Workers(1).compile(request_for(source(), 90))


def test_an_interrupt_stops_the_worker(workers, monkeypatch):
    workers.compile(request_for(source(), 90))
    (worker,) = workers._idle

    def interrupted():
        raise KeyboardInterrupt

    monkeypatch.setattr(worker, "_answer", interrupted)
    with pytest.raises(KeyboardInterrupt):
        workers.compile(request_for(source(101), 90))
    assert worker._process.poll() == -signal.SIGKILL
    assert not workers._idle


@pytest.mark.parametrize(("processors", "ranks", "most"), [
    (64, None, 16), (8, None, 8), (64, "8", 8), (2, "8", 1), (64, "0", 16), (64, "many", 16),
])  # fmt: skip
def test_processes_of_one_job_share_the_processors(processors, ranks, most, monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: processors)
    if ranks is not None:
        monkeypatch.setenv("LOCAL_WORLD_SIZE", ranks)
    assert triton_workers.most_workers() == most


def test_a_forked_process_has_its_own():
    code = """
import os, sys
from torchweld.runtime import triton_workers as w
mine = w._HERE.workers
if os.fork() == 0:
    os._exit(0 if w._HERE.workers is not mine else 1)
sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_worker_imports_no_torch():
    code = f"import sys; sys.argv = ['', {sys.path!r}, {triton_worker.__file__!r}]\n" \
           "import importlib.util\n" \
           "spec = importlib.util.spec_from_file_location('t', sys.argv[2])\n" \
           "sys.modules['t'] = module = importlib.util.module_from_spec(spec)\n" \
           "spec.loader.exec_module(module); module.import_triton()\n" \
           "assert 'torch' not in sys.modules and 'torchweld' not in sys.modules"  # fmt: skip
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_softmax_of_any_version_is_cached_by_the_same_key(workers):
    """With constants, and with pointers of any alignment."""
    one = bundle_of(softmax(64, 1000, dtype="bf16")).sources[0]
    for unaligned in ((), (0,), (0, 1)):
        request = request_for(one, 80, unaligned)
        workers.compile(request)
        assert compiled(request, cached=True).asm["cubin"]
