"""Cases measured one process each, written as JSON, and rendered into docs/benchmarks.md.

Each case runs in a process of its own: a crash, a leak or a stuck compiler costs that case alone.
"""
from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from tables import README, ROOT, render, render_brief, seconds, update_page

_LEAST_SECONDS = 5.0
SLOW = frozenset({"inductor-max-autotune"})  # to compile


@dataclass(frozen=True)
class Case:
    """One row. `adamw`: a training step ends with AdamW(fused=True) over all parameters.
    `at_least`: the ratio to the best other way that is aimed for; `most_kernels`: in a call.
    `checked`: the lengths of the inputs' first dimensions at which the error is looked at, where
    the model in float64 would not fit in memory (empty: as measured)."""

    label: str
    target: str
    dtype: str
    batch: int | None = None
    length: int | None = None
    train: bool = False
    adamw: bool = False
    at_least: float = 1.0
    most_kernels: int | None = None
    checked: tuple[int, ...] = ()


@dataclass(frozen=True)
class Run:
    """What a command measures: `ways` as in report.ways, `seconds` of paired timing a case, at most
    `case_seconds` a case and `total_seconds` in all. SLOW ways come after all others, paired with
    torchweld once more, as far as the time goes."""

    device: str
    ways: tuple[str, ...]
    seconds: float
    case_seconds: float
    total_seconds: float
    second_process: bool = False


def measure_case(case: Case, run: Run, write: Callable[[dict], object]) -> None:
    """Writes the case's prediction and report as plain data, and again with the errors of torchweld
    and eager, for which there may be no time; called in the case's own process. Without eager among
    the ways there is no error."""
    from liger import RECIPE
    from predicted import predicted_ms
    from torchweld.api import records
    from torchweld.observe.report.build import Plan, measured_report
    from torchweld.observe.report.ways import WAYS

    start = time.monotonic()
    WAYS["liger"] = RECIPE
    workload = _workload(case, run.device)
    report, ready = measured_report(
        Plan(case.label, workload, list(run.ways), run.seconds), _unheard
    )
    optimised = workload.model if case.adamw else None
    predicted = predicted_ms(records(ready["torchweld"].run), run.device, optimised)
    row = {"predicted_ms": predicted, "report": asdict(report)}
    write(row | {"seconds": time.monotonic() - start})
    if "eager" in run.ways:
        row["report"] = asdict(_with_errors(case, report, ready, workload))
        write(row | {"seconds": time.monotonic() - start})


def _with_errors(case: Case, report, ready: dict, workload):
    import torch

    from torchweld.api import fuse
    from torchweld.observe.report.build import with_errors

    ours = ready.pop("torchweld")
    ready.clear()  # the others' memory
    if case.checked:
        torch.compiler.reset()  # or these sizes would become symbols
        cut = tuple(slice(n) for n in case.checked)
        workload = replace(workload, args=tuple(a[cut] for a in workload.args))
        ours = replace(ours, run=fuse(workload.model, dynamic=False))
    return with_errors(report, {"torchweld": ours}, workload, _unheard)


def _unheard(what: str, done: float) -> None:
    """Nobody watches."""


def run_cases(cases: Sequence[Case], run: Run, script: str) -> list[dict]:
    """Measures each case in a child process; a case that fails or runs out of time is a row with a
    problem. While one is measured, the next imports what it needs."""
    rows, end = [], time.monotonic() + run.total_seconds
    todo = [(case, part) for part in _parts(run) for case in cases]
    with tempfile.TemporaryDirectory() as cache, ExitStack() as waiting:
        ahead = [waiting.enter_context(_child(*todo[0], script, cache))] if todo else []
        for number, (case, part) in enumerate(todo):
            child = ahead.pop()
            for following in todo[number + 1 : number + 2]:
                ahead.append(waiting.enter_context(_child(*following, script, cache)))
            budget = min(run.case_seconds, end - time.monotonic())
            row = {"case": asdict(case)} | child(budget)
            if part.second_process and "report" in row:
                with _child(case, _only_torchweld(run), script, cache) as again:
                    row["second"] = again(budget)
            rows.append(row)
            print(_progress(row), flush=True)
    return rows


def _parts(run: Run) -> list[Run]:
    """The ways that are quick to compile, and then the SLOW ones."""
    baselines = run.ways[:-1]
    slow = tuple(w for w in baselines if w in SLOW)
    quick = tuple(w for w in baselines if w not in SLOW)
    parts = [replace(run, ways=(*quick, run.ways[-1]))] if quick or not slow else []
    if slow:
        parts.append(replace(run, ways=(*slow, run.ways[-1]), second_process=False))
    return parts


def child_main(arguments: list[str]) -> None:
    """`--child CASE RUN FILE`, both in JSON: measures once a line comes in, and writes the row's
    parts to FILE."""
    case, run = Case(**json.loads(arguments[0])), Run(**json.loads(arguments[1]))
    _import_ahead()
    sys.stdin.readline()
    measure_case(case, run, lambda parts: _replace(Path(arguments[2]), json.dumps(parts)))


def _import_ahead() -> None:
    """What all ways need, other than compilers."""
    import torchweld.observe.report.build  # noqa: F401

    with suppress(ImportError):
        from transformers import PreTrainedModel  # noqa: F401


def _replace(path: Path, text: str) -> None:
    """In one step: a reader sees the old text or the new."""
    fresh = path.with_suffix(".new")
    fresh.write_text(text)
    fresh.replace(path)


def write_results(rows: list[dict], name: str) -> Path:
    """Into $OUT, or ./out: the rows as JSON, with the command."""
    folder = Path(os.environ.get("OUT", ROOT / "out"))
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    path.write_text(json.dumps({"command": " ".join(_command()), "rows": rows}, indent=1) + "\n")
    return path


def main(name: str, cases: list[Case], run: Run, kernels: str) -> None:
    """The command line of bench/cpu.py and bench/gpu.py."""
    from argparse import ArgumentParser, RawDescriptionHelpFormatter

    if sys.argv[1:2] == ["--child"]:
        return child_main(sys.argv[2:])
    parser = ArgumentParser(description=f"Whole models on the {run.device}: {_labels(cases)}",
                            formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="parts of labels, separated by commas")
    parser.add_argument("--part", default="1/1", help="2/3: the second, fifth, ... case of these")
    parser.add_argument("--against", default=",".join(run.ways[:-1]), help="baselines")
    parser.add_argument("--seconds", type=float, default=run.seconds, help="timing, a case")
    parser.add_argument("--total", type=float, default=run.total_seconds, help="seconds in all")
    parser.add_argument("--name", default=name, help="of the result file")
    parser.add_argument("--second", action="store_true", help="also time a second process")
    parser.add_argument("--kernels", action="store_true", help=f"also run bench/{kernels}")
    parser.add_argument("--render", nargs="+", type=Path, metavar="FILE",
                        help="measure nothing: write docs/benchmarks.md from these results")
    asked = parser.parse_args()
    files = asked.render or [_measure(cases, run, asked)]
    order = [case.label for case in cases]
    text = render(files, order)
    update_page(f"models-{run.device}", text)
    update_page(f"measured-{run.device}", render_brief(files, order), README)
    print(text)
    if asked.kernels and not asked.render:
        subprocess.run([sys.executable, str(ROOT / "bench" / kernels)], check=True)
    return None


def _measure(cases: list[Case], run: Run, asked) -> Path:
    parts = [part for part in asked.only.split(",") if part]
    chosen = [c for c in cases if not parts or any(part in c.label for part in parts)]
    number, of = map(int, asked.part.split("/"))
    chosen = chosen[number - 1 :: of]
    ways = (*(w for w in asked.against.split(",") if w), "torchweld")
    wanted = Run(run.device, ways, asked.seconds, run.case_seconds, asked.total, asked.second)
    return write_results(run_cases(chosen, wanted, sys.argv[0]), asked.name)


def _workload(case: Case, device: str):
    import torch

    from torchweld.observe.report.measure import Workload
    from torchweld.zoo import models, targets

    dtype = getattr(torch, case.dtype)
    if ":" in case.target:
        spec = str(ROOT / case.target)
        target = targets.load_target(spec, dtype=dtype, device=device, train=case.train)
    else:
        target = models.load(case.target, device, dtype=dtype, device=device, train=case.train,
                             batch=case.batch, length=case.length)
    after = _adamw(target.model) if case.adamw else None
    return Workload(target.model, target.args, target.kwargs, case.train, device, after)


def _adamw(model) -> Callable[[], object]:
    """A rate of 0 leaves the weights as they are, for the comparison with float64; the work is the
    same."""
    import torch

    return torch.optim.AdamW(model.parameters(), lr=0.0, weight_decay=0.0, fused=True).step


@contextmanager
def _child(case: Case, run: Run, script: str, cache: str) -> Iterator[Callable[[float], dict]]:
    """A function that has the process measure within so many seconds, and gives the row's parts."""
    with tempfile.NamedTemporaryFile(suffix=".json") as out:
        command = [sys.executable, script, "--child", json.dumps(asdict(case)),
                   json.dumps(asdict(run)), out.name]
        environment = os.environ | {"TORCHWELD_CACHE_DIR": cache}
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        with subprocess.Popen(command, text=True, env=environment, **pipes) as process:
            try:
                yield lambda seconds: _measured(process, seconds) | _written(out.name)
            finally:
                process.kill()


def _measured(process: subprocess.Popen, seconds: float) -> dict:
    """What went wrong."""
    if seconds < _LEAST_SECONDS:
        return {"problem": "not run: the time for all cases was used up"}
    try:
        _, said = process.communicate("go\n", timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        return {"problem": f"not finished within {seconds:.0f} s"}
    return {"problem": _last_line(said), "stderr": said[-4000:]} if process.returncode else {}


def _written(file: str) -> dict:
    """The parts of the row that a child wrote, nothing if it did not come so far."""
    text = Path(file).read_text()
    return json.loads(text) if text else {}


def _only_torchweld(run: Run) -> Run:
    return Run(run.device, ("torchweld",), 0.0, run.case_seconds, run.total_seconds)


def _progress(row: dict) -> str:
    if "report" not in row:
        return f"{row['case']['label']}: {row['problem']}"
    ways = row["report"]["ways"]
    problem = f" ({row['problem']})" if "problem" in row else ""
    took = f" in {row['seconds']:.0f} s" if "seconds" in row else ""
    return f"{row['case']['label']}{took}: {', '.join(map(_progress_of_way, ways))}{problem}"


def _progress_of_way(way: dict) -> str:
    from torchweld.core.units import bytes_text

    if not way["timing"]:
        return f"{way['name']}: {way['problem']}"
    return (f"{way['name']} {way['timing']['median_ms']:.3g} ms (first call {seconds(way)} s, "
            f"peak {bytes_text(way['peak_bytes'])})")


def _labels(cases: list[Case]) -> str:
    return "; ".join(case.label for case in cases)


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1][:300] if lines else "it failed without a word"


def _command() -> list[str]:
    script = Path(sys.argv[0]).resolve()
    shown = script.relative_to(ROOT) if script.is_relative_to(ROOT) else script
    return ["python", str(shown), *sys.argv[1:]]
