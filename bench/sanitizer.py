"""NVIDIA's compute-sanitizer over small kernels of every template (sanitizer_cases.py).

    python bench/sanitizer.py [--workers 6] [--limit 70] [--total 540] [--tools memcheck racecheck]
                              [--groups "score nests, Gluon" ...]

memcheck: accesses out of bounds, or of addresses that are no multiple of their size, in global,
local and shared memory. racecheck: two accesses of shared memory, at least one a write, without a
barrier between them. Each group of kernels has a process of its own under each tool, where every
tensor has memory of its own; all are compiled beforehand. A run longer than --limit seconds is
killed; none begins when --total is over. A short table comes last. Into $OUT (default: out/):
sanitizer/GROUP-TOOL.log, all that the tool says.

Exits 1 if a tool found anything or a run did not come to its end, 2 without the tool or a GPU.
"""
from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[1]
LAST = "ran to the end"  # said by a process after its last kernel
SHOWN = 3  # kinds of findings in the table
TOOLS = {  # and what is behind each allocation: nothing may touch it
    "memcheck": ("--report-api-errors", "no", "--padding", "4096"),
    "racecheck": (),
}
_SUMMARY = re.compile(r"(?:RACECHECK|ERROR) SUMMARY: (\d+) (?:hazard|error)")
# What is found, and the line below it, which may say where.
_EVENT = re.compile(r"^={9} (?:\w+: )?([A-Z][a-z].*)(?:\n={9}  +(at .*))?", re.MULTILINE)
_KERNEL = re.compile(r"(\w+)(?:\([^()]*\))?\+0x")


@dataclass(frozen=True, slots=True)
class Run:
    """One group under one tool. `findings`: as its summary counts them; `kinds`: what it says, and
    how often; `problem`: why there is no count, or why it is not to be trusted."""

    group: str
    tool: str
    findings: int = 0
    kinds: Counter = field(default_factory=Counter)
    seconds: float = 0.0
    problem: str = ""

    @property
    def good(self) -> bool:
        return not self.findings and not self.problem

    @property
    def cell(self) -> str:
        return "?" if self.problem else str(self.findings)


def find_tool() -> str | None:
    """compute-sanitizer on PATH, or in a CUDA toolkit."""
    homes = [os.environ.get(name) for name in ("CUDA_HOME", "CUDA_PATH")]
    folders = [Path(home) for home in (*homes, "/usr/local/cuda") if home]
    places = [f / part for f in folders for part in ("bin", "compute-sanitizer")]
    return shutil.which("compute-sanitizer") or shutil.which(
        "compute-sanitizer", path=os.pathsep.join(map(str, places))
    )


def read(group: str, tool: str, text: str, seconds: float = 0.0, problem: str = "") -> Run:
    """What the tool said. A run that did not come to its end is a problem, whatever it said."""
    summary = _SUMMARY.search(text)
    kinds = Counter(_kind(*m.groups()) for m in _EVENT.finditer(text))
    if not problem and LAST not in text:
        problem = "the program failed: " + _last_line(text)
    if not problem and summary is None:
        problem = "no summary of the tool"
    return Run(group, tool, int(summary[1]) if summary else 0, kinds, seconds, problem)


def _kind(said: str, place: str | None) -> str:
    """Invalid __global__ read of size 4 bytes at softmax"""
    kernel = _KERNEL.search(f"{said} {place or ''}")
    said = said.partition(" at ")[0].strip()
    return f"{said} at {kernel[1]}" if kernel else said


def _last_line(text: str) -> str:
    """Of the program itself."""
    lines = [s for line in text.splitlines() if (s := line.strip()) and not s.startswith("=" * 9)]
    return lines[-1][:120] if lines else "it said nothing"


def table(runs: Iterable[Run], tools: Iterable[str]) -> list[str]:
    """A line for each group, what was found, the verdict."""
    runs, tools = list(runs), list(tools)
    by = {(r.group, r.tool): r for r in runs}
    heads = {"memcheck": "memcheck errors", "racecheck": "racecheck hazards"}
    lines = [f"{'kernels':24}" + "".join(f"{heads[t]:>20}" for t in tools) + f"{'seconds':>10}"]
    for group in dict.fromkeys(r.group for r in runs):
        mine = [by.get((group, tool)) for tool in tools]
        cells = "".join(f"{r.cell if r else '-':>20}" for r in mine)
        lines.append(f"{group:24}{cells}{sum(r.seconds for r in mine if r):10.0f}")
    for r in runs:
        lines += [f"{r.group}, {r.tool}: {r.problem}"] if r.problem else []
        lines += [f"{r.group}, {r.tool}: {n} x {k}" for k, n in r.kinds.most_common(SHOWN)]
    bad = sum(not r.good for r in runs)
    verdict = f"{bad} of {len(runs)} runs are not clean" if bad else f"all {len(runs)} clean"
    return [*lines, verdict]


# -- running --


def watched(tool: str, path: str, group: str, limit: float, folder: Path) -> Run:
    """`group` in a process under `tool`; killed after `limit` seconds."""
    log = folder / f"{re.sub(r'[^a-z]+', '_', group.lower())}-{tool}.log"
    command = [path, "--tool", tool, "--target-processes", "application-only", *TOOLS[tool],
               "--show-backtrace", "no", sys.executable, __file__, "--run", group]  # fmt: skip
    start = time.monotonic()
    with log.open("wb") as file:
        process = subprocess.Popen(command, env=_environment(), start_new_session=True,
                                   stdout=file, stderr=subprocess.STDOUT)  # fmt: skip
        try:
            process.wait(limit)
            problem = ""
        except subprocess.TimeoutExpired:
            problem = f"not finished after {limit:.0f} s"
        finally:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    text = log.read_text(errors="replace")
    return read(group, tool, text, time.monotonic() - start, problem)


def _environment() -> dict[str, str]:
    """Each tensor has an allocation of its own, so that what is beside it is out of bounds."""
    paths = os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]))
    return {"OMP_NUM_THREADS": "1", **os.environ, "PYTHONPATH": paths,
            "PYTORCH_NO_CUDA_MEMORY_CACHING": "1", "CUDA_MODULE_LOADING": "LAZY"}  # fmt: skip


def all_of(asked: argparse.Namespace, path: str, groups: list[str], folder: Path) -> list[Run]:
    end = time.monotonic() + asked.total

    def one(pair: tuple[str, str]) -> Run:
        group, tool = pair
        left = min(asked.limit, end - time.monotonic())
        if left <= 0:
            return Run(group, tool, problem="not begun")
        run = watched(tool, path, group, left, folder)
        print(f"{group}, {tool}: {run.problem or run.findings}, {run.seconds:.0f} s", flush=True)
        return run

    pairs = [(group, tool) for group in groups for tool in asked.tools]
    with ThreadPoolExecutor(asked.workers) as pool:
        return list(pool.map(one, pairs))


def launched(group: str) -> None:
    """The kernels of `group`, in this process, one after the other."""
    import torch

    from sanitizer_cases import GROUPS
    from triton_cases import tensors
    from triton_run import WhenAsked, launch, prepare

    for case, bundle in GROUPS[group].made():
        made = tensors(case, "cuda")
        prepare(case, bundle, made)
        launch(case, bundle, made, WhenAsked())
        torch.cuda.synchronize()
        print(case.name, flush=True)
    print(LAST, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--workers", type=int, default=6, help="runs at a time")
    parser.add_argument("--limit", type=float, default=70.0, help="seconds for each run")
    parser.add_argument("--total", type=float, default=540.0, help="seconds for all")
    parser.add_argument("--tools", nargs="+", choices=TOOLS, default=list(TOOLS))
    parser.add_argument("--groups", nargs="+", help="of sanitizer_cases.GROUPS (all)")
    parser.add_argument("--run", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.run:
        launched(asked.run)
        return 0
    path = find_tool()
    if path is None:
        print("compute-sanitizer is not here: neither on PATH nor in CUDA_HOME")
        return 2
    return _checked(asked, path)


def _checked(asked: argparse.Namespace, path: str) -> int:
    import torch

    from sanitizer_cases import GROUPS
    from triton_run import compile_in_processes

    if not torch.cuda.is_available():
        print("no GPU that torch can use is here")
        return 2
    is_hopper = torch.cuda.get_device_capability()[0] == 9
    groups = [n for n in asked.groups or GROUPS if is_hopper or not GROUPS[n].hopper]
    folder = Path(os.environ.get("OUT", ROOT / "out")) / "sanitizer"
    folder.mkdir(parents=True, exist_ok=True)
    start = time.monotonic()
    compile_in_processes(s for n in groups for _, b in GROUPS[n].made() for s in b.sources)
    spent = time.monotonic() - start
    print(f"compiled in {spent:.0f} s", flush=True)
    asked.total -= spent
    runs = all_of(asked, path, groups, folder)
    lines = table(runs, asked.tools)
    (folder / "table.txt").write_text("\n".join(lines) + "\n")
    print("\n".join(lines), flush=True)
    return 0 if all(r.good for r in runs) else 1


if __name__ == "__main__":
    sys.exit(main())
