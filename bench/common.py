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
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE, README = ROOT / "docs" / "benchmarks.md", ROOT / "README.md"


@dataclass(frozen=True)
class Case:
    """One row. `adamw`: a training step ends with AdamW(fused=True) over all parameters."""

    label: str
    target: str
    dtype: str
    batch: int | None = None
    length: int | None = None
    train: bool = False
    adamw: bool = False


@dataclass(frozen=True)
class Run:
    """What a command measures: `ways` as in report.ways, `seconds` of paired timing a case, at most
    `case_seconds` a case and `total_seconds` in all."""

    device: str
    ways: tuple[str, ...]
    seconds: float
    case_seconds: float
    total_seconds: float
    second_process: bool = False


def measure_case(case: Case, run: Run, write: Callable[[dict], object]) -> None:
    """Writes the case's report as plain data, and again with the errors of torchweld and eager, for
    which there may be no time; called in the case's own process."""
    from torchweld.report.build import Plan, measured_report, with_errors
    from torchweld.report.ways import WAYS

    if "liger" in run.ways:
        from liger import RECIPE

        WAYS["liger"] = RECIPE
    workload = _workload(case, run.device)
    plan = Plan(case.label, workload, list(run.ways), run.seconds)
    report, ready = measured_report(plan, _unheard)
    write(asdict(report))
    checked = {"torchweld": ready["torchweld"]}
    write(asdict(with_errors(report, checked, workload, _unheard)))


def _unheard(what: str, done: float) -> None:
    """Nobody watches."""


def run_cases(cases: Iterable[Case], run: Run, script: str) -> list[dict]:
    """Measures each case in a child process; a case that fails or runs out of time is a row with a
    problem."""
    rows, end = [], time.monotonic() + run.total_seconds
    with tempfile.TemporaryDirectory() as cache:
        for case in cases:
            budget = min(run.case_seconds, end - time.monotonic())
            row = _in_child(case, run, script, cache, budget)
            if run.second_process and "report" in row:
                row["second"] = _in_child(case, _only_torchweld(run), script, cache, budget)
            rows.append(row)
            print(_progress(row), flush=True)
    return rows


def child_main(arguments: list[str]) -> None:
    """`--child CASE RUN FILE`, both in JSON: measures and writes the report to FILE."""
    case, run = Case(**json.loads(arguments[0])), Run(**json.loads(arguments[1]))
    measure_case(case, run, lambda report: _replace(Path(arguments[2]), json.dumps(report)))


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


def update_page(marker: str, text: str, page: Path = PAGE) -> None:
    """Replaces what stands between the marker's two comments, or appends both."""
    begin, end = f"<!-- {marker}:begin -->", f"<!-- {marker}:end -->"
    page.parent.mkdir(exist_ok=True)
    old = page.read_text() if page.exists() else "# Benchmarks\n"
    if begin not in old:
        old = f"{old.rstrip()}\n\n{begin}\n{end}\n"
    before, rest = old.split(begin, 1)
    after = rest.split(end, 1)[1]
    page.write_text(f"{before}{begin}\n{text.strip()}\n{end}{after}")


def render(files: list[Path], brief: bool = False) -> str:
    """A Markdown table of the rows of result files; a case measured again replaces its older row.
    `brief`: only cases that were measured, and only their times."""
    rows: dict[str, dict] = {}
    commands = []
    for path in files:
        data = json.loads(path.read_text())
        commands.append(data["command"])
        rows.update({row["case"]["label"]: row for row in data["rows"]})
    if brief:
        measured = [row for row in rows.values() if "report" in row]
        return "\n".join([*_where(measured, commands)[:1], "", *_brief_table(measured)])
    return "\n".join([*_where(rows.values(), commands), "", *_table(list(rows.values()))])


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
    parser.add_argument("--second", action="store_true", help="also time a second process")
    parser.add_argument("--kernels", action="store_true", help=f"also run bench/{kernels}")
    parser.add_argument("--render", nargs="+", type=Path, metavar="FILE",
                        help="measure nothing: write docs/benchmarks.md from these results")
    asked = parser.parse_args()
    files = asked.render or [_measure(name, cases, run, asked)]
    text = render(files)
    update_page(f"models-{run.device}", text)
    update_page(f"measured-{run.device}", render(files, brief=True), README)
    print(text)
    if asked.kernels and not asked.render:
        subprocess.run([sys.executable, str(ROOT / "bench" / kernels)], check=True)
    return None


def _measure(name: str, cases: list[Case], run: Run, asked) -> Path:
    parts = [part for part in asked.only.split(",") if part]
    chosen = [c for c in cases if not parts or any(part in c.label for part in parts)]
    number, of = map(int, asked.part.split("/"))
    chosen = chosen[number - 1 :: of]
    ways = (*(w for w in asked.against.split(",") if w), "torchweld")
    wanted = Run(run.device, ways, asked.seconds, run.case_seconds, asked.total, asked.second)
    return write_results(run_cases(chosen, wanted, sys.argv[0]), name)


def _workload(case: Case, device: str):
    import torch

    from torchweld.report.measure import Workload
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


def _in_child(case: Case, run: Run, script: str, cache: str, budget: float) -> dict:
    row: dict = {"case": asdict(case)}
    if budget < 5:
        return row | {"problem": "not run: the time for all cases was used up"}
    with tempfile.NamedTemporaryFile(suffix=".json") as out:
        command = [sys.executable, script, "--child", json.dumps(asdict(case)),
                   json.dumps(asdict(run)), out.name]
        environment = os.environ | {"TORCHWELD_CACHE_DIR": cache}
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=budget,
                                  env=environment, stdin=subprocess.DEVNULL)
        except subprocess.TimeoutExpired:
            row["problem"] = f"not finished within {budget:.0f} s"
            return row | _report_in(out.name)
        if done.returncode:
            row |= {"problem": _last_line(done.stderr), "stderr": done.stderr[-4000:]}
        return row | _report_in(out.name)


def _report_in(file: str) -> dict:
    """What a child wrote, nothing if it did not come so far."""
    text = Path(file).read_text()
    return {"report": json.loads(text)} if text else {}


def _only_torchweld(run: Run) -> Run:
    return Run(run.device, ("torchweld",), 0.0, run.case_seconds, run.total_seconds)


def _where(rows: Iterable[dict], commands: list[str]) -> list[str]:
    reports = [row["report"] for row in rows if "report" in row]
    lines = [f"Commands: {', '.join(f'`{command}`' for command in dict.fromkeys(commands))}."]
    if reports:
        machine, dates = reports[0]["machine"], sorted(r["date"][:10] for r in reports)
        threads = f", {machine['threads']} threads" if machine["device"] == "cpu" else ""
        lines.insert(0, f"{machine['name']}{threads}, torch {machine['torch']}, Triton "
                        f"{machine['triton']}, Python {machine['python']}, {dates[-1]}.")
    return lines


def _table(rows: list[dict]) -> list[str]:
    """Milliseconds of each way, then the fastest baseline's time over torchweld's (paired)."""
    found = [way["name"] for row in rows if "report" in row for way in row["report"]["ways"]]
    names = [name for name in dict.fromkeys(found) if name != "torchweld"]
    head = ["case", *(f"{name}, ms" for name in [*names, "torchweld"]), "best / torchweld",
            "first call, s: inductor, torchweld", "peak: eager, torchweld", "error L2 (eager)"]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return lines + ["| " + " | ".join(_cells(row, names)) + " |" for row in rows]


def _brief_table(rows: list[dict]) -> list[str]:
    lines = ["| case | eager, ms | best torch.compile, ms | torchweld, ms | ratio to best |",
             "|---|---|---|---|---|"]
    return lines + ["| " + " | ".join(_brief_cells(row)) + " |" for row in rows]


def _brief_cells(row: dict) -> list[str]:
    from torchweld.core.units import ms_text

    timed = {w["name"]: w["timing"] for w in row["report"]["ways"] if w["timing"]}
    compiled = [t["median_ms"] for name, t in timed.items() if name.startswith("inductor")]
    shown = [[timed[n]["median_ms"]] if n in timed else [] for n in ("eager", "torchweld")]
    shown.insert(1, compiled)
    medians = [ms_text(min(times)) if times else "-" for times in shown]
    return [row["case"]["label"], *medians, _best_ratio(timed)]


def _best_ratio(timed: dict[str, dict]) -> str:
    """The paired ratio to the fastest baseline; above 1 torchweld is ahead."""
    ratios = [timing["ratio"] for name, timing in timed.items() if name != "torchweld"]
    return f"{min(ratios):.2f}" if ratios else "-"


def _cells(row: dict, names: list[str]) -> list[str]:
    from torchweld.core.units import bytes_text, ms_text

    label = row["case"]["label"]
    if "report" not in row:
        return [label, f"{row['problem']}", *[""] * (len(names) + 4)]
    ways = {way["name"]: way for way in row["report"]["ways"]}
    ours, eager, inductor = (ways.get(n, {}) for n in ("torchweld", "eager", "inductor"))
    timed = {n: w["timing"] for n, w in ways.items() if w["timing"]}
    medians = [ms_text(timed[n]["median_ms"]) if n in timed else "-" for n in [*names, "torchweld"]]
    return [label, *medians, _best_ratio(timed),
            f"{_seconds(inductor)}, {_seconds(ours)}{_second(row)}",
            f"{bytes_text(eager.get('peak_bytes'))}, {bytes_text(ours.get('peak_bytes'))}",
            f"{_error(ours)} ({_error(eager)})"]


def _seconds(way: dict) -> str:
    return f"{way['first_call_s']:.1f}" if way.get("first_call_s") is not None else "-"


def _second(row: dict) -> str:
    report = row.get("second", {}).get("report")
    return f" (second process {_seconds(report['ways'][-1])})" if report else ""


def _error(way: dict) -> str:
    return f"{way['error']['relative_l2']:.1e}" if way.get("error") else "-"


def _progress(row: dict) -> str:
    if "report" not in row:
        return f"{row['case']['label']}: {row['problem']}"
    timed = [way for way in row["report"]["ways"] if way["timing"]]
    return f"{row['case']['label']}: " + ", ".join(map(_progress_of_way, timed))


def _progress_of_way(way: dict) -> str:
    from torchweld.core.units import bytes_text

    return (f"{way['name']} {way['timing']['median_ms']:.3g} ms (first call {_seconds(way)} s, "
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
