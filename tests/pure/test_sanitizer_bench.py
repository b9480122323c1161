"""bench/sanitizer.py reads what compute-sanitizer says, and its kernels can be made; no GPU."""
from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

BENCH = Path(__file__).parents[2] / "bench"


@pytest.fixture(scope="module")
def bench():
    with pytest.MonkeyPatch.context() as patched:
        patched.syspath_prepend(str(BENCH))
        import sanitizer
        import sanitizer_cases

        yield SimpleNamespace(run=sanitizer, cases=sanitizer_cases)
        for name in ("sanitizer", "sanitizer_cases"):
            del sys.modules[name]


CLEAN = """========= COMPUTE-SANITIZER
softmax
ran to the end
========= ERROR SUMMARY: 0 errors
"""
OUT_OF_BOUNDS = """========= COMPUTE-SANITIZER
========= Invalid __global__ read of size 4 bytes
=========     at softmax+0xb0 in softmax.py:16
=========     by thread (160,0,0) in block (3906,0,0)
=========     Address 0x10009dd0aa0 is out of bounds
=========     and is 4 bytes after the nearest allocation at 0x10009dd0000 of size 2,720 bytes
=========
========= Invalid __global__ read of size 4 bytes
=========     at softmax(float *, float)+0xb0 in softmax.py:16
=========     by thread (161,0,0) in block (3906,0,0)
=========     Address 0x10009dd0aa4 is out of bounds
ran to the end
========= ERROR SUMMARY: 2 errors
"""
RACE = """========= COMPUTE-SANITIZER
========= Error: Race reported between Write access at kernel+0xf0 in kernel.py:12
=========     and Read access at kernel+0xd0 in kernel.py:12 [32 hazards]
=========     and Write access at kernel+0xf0 in kernel.py:12 [4 hazards]
=========
ran to the end
========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)
"""
DIED = """========= COMPUTE-SANITIZER
Traceback (most recent call last):
RuntimeError: no such kernel
========= Target application returned an error
========= ERROR SUMMARY: 0 errors
"""


@pytest.mark.parametrize(
    ("tool", "text", "findings", "kinds", "problem"),
    [
        ("memcheck", CLEAN, 0, {}, ""),
        ("racecheck", CLEAN.replace("ERROR SUMMARY: 0 errors",
         "RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)"), 0, {}, ""),
        ("memcheck", OUT_OF_BOUNDS, 2, {"Invalid __global__ read of size 4 bytes at softmax": 2},
         ""),
        ("racecheck", RACE, 1, {"Race reported between Write access at kernel": 1}, ""),
        ("memcheck", DIED, 0, {"Target application returned an error": 1},
         "the program failed: RuntimeError: no such kernel"),
        ("memcheck", "ran to the end\n", 0, {}, "no summary of the tool"),
        ("memcheck", "", 0, {}, "the program failed: it said nothing"),
    ],
)  # fmt: skip
def test_what_the_tool_says_is_read(bench, tool, text, findings, kinds, problem):
    run = bench.run.read("norms", tool, text)
    assert (run.findings, dict(run.kinds), run.problem) == (findings, kinds, problem)
    assert run.good == (text == CLEAN or "0 hazards" in text)


def test_a_run_that_was_killed_is_no_clean_one(bench):
    run = bench.run.read("norms", "memcheck", CLEAN, problem="not finished after 70 s")
    assert not run.good and run.cell == "?"


def test_the_table_ends_with_the_verdict(bench):
    read = bench.run.read
    runs = [read("norms", "memcheck", CLEAN, 4.0), read("norms", "racecheck", RACE, 8.0),
            read("scans", "memcheck", DIED, 1.0)]  # fmt: skip
    lines = bench.run.table(runs, ("memcheck", "racecheck"))
    assert lines[0].split() == ["kernels", "memcheck", "errors", "racecheck", "hazards", "seconds"]
    assert [line.split() for line in lines[1:3]] == [["norms", "0", "1", "12"],
                                                     ["scans", "?", "-", "1"]]  # fmt: skip
    assert "norms, racecheck: 1 x Race reported between Write access at kernel" in lines
    assert lines[-1] == "2 of 3 runs are not clean"
    assert bench.run.table(runs[:1], ("memcheck",))[-1] == "all 1 clean"


def test_a_process_that_does_not_end_is_killed(bench, tmp_path):
    """The tool is a script here, which runs for ever."""
    tool = tmp_path / "compute-sanitizer"
    tool.write_text("#!/bin/sh\necho begun\nexec sleep 1000\n")
    tool.chmod(0o755)
    run = bench.run.watched("memcheck", str(tool), "norms", 0.2, tmp_path)
    assert run.problem == "not finished after 0 s"
    assert (tmp_path / "norms-memcheck.log").exists()


def test_the_tool_is_found_on_the_path_or_in_a_toolkit(bench, tmp_path, monkeypatch):
    tool = tmp_path / "cuda" / "bin" / "compute-sanitizer"
    tool.parent.mkdir(parents=True)
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "cuda"))
    assert bench.run.find_tool() == str(tool)
    monkeypatch.setenv("PATH", str(tool.parent))
    monkeypatch.delenv("CUDA_HOME")
    assert bench.run.find_tool() == str(tool)


def test_without_the_tool_it_says_so(bench, tmp_path):
    code = ("import sys; sys.argv[0] = 'sanitizer.py'; import sanitizer; "
            "sanitizer.find_tool = lambda: None; sys.exit(sanitizer.main())")  # fmt: skip
    done = subprocess.run([sys.executable, "-c", code], cwd=BENCH, capture_output=True, text=True)
    assert done.returncode == 2 and "compute-sanitizer is not here" in done.stdout


def test_every_group_has_kernels(bench):
    """Made as for an H100; what they are named for is in their texts."""
    made = {name: group.made() for name, group in bench.cases.GROUPS.items()}
    languages = {n: {s.language for _, b in k for s in b.sources} for n, k in made.items()}
    assert all(languages.values())
    gluon = {n for n, found in languages.items() if "gluon" in found}
    assert gluon == {"products, Gluon", "products of few rows", "column sums",
                     "score nests, Gluon", "convolutions"}  # fmt: skip
    assert all(bench.cases.GROUPS[name].hopper for name in gluon)
    texts = {n: "".join(s.text for _, b in k for s in b.sources) for n, k in made.items()}
    assert "atomic_add" in texts["scatters by atomics"]
    assert all(len(b.sources) == 2 for _, b in made["split reductions"])
