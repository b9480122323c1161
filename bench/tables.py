"""Tables of results in Markdown, and their places in docs/benchmarks.md and README.md.

A result file holds rows, one a case. A row without eager adds its ways to the row of an earlier
file; any other replaces it.
"""
from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE, README = ROOT / "docs" / "benchmarks.md", ROOT / "README.md"
DOES_NOT_APPLY = "does not apply"  # in the problem of a way that could not run such a model
OURS = "torchweld"


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


def render(files: Iterable[Path], order: Sequence[str] = ()) -> str:
    """What was run and where, the cases against their targets, and all that was measured. `order`:
    of labels; others come last."""
    rows, commands = read(files, order)
    measured = [row for row in rows if "report" in row]
    return "\n".join([*_where(measured, commands), "", *_targets(rows), "", *_details(measured)])


def render_brief(files: Iterable[Path], order: Sequence[str] = ()) -> str:
    """Of the cases that were measured, their times alone."""
    rows, commands = read(files, order)
    measured = [row for row in rows if "report" in row]
    return "\n".join([*_where(measured, commands)[:1], "", *_brief(measured)])


def read(files: Iterable[Path], order: Sequence[str]) -> tuple[list[dict], list[str]]:
    """The rows of all files, one a case, and the commands."""
    rows: dict[str, dict] = {}
    commands = []
    for path in files:
        data = json.loads(path.read_text())
        commands.append(data["command"])
        for row in data["rows"]:
            label = row["case"]["label"]
            rows[label] = _joined(rows[label], row) if label in rows else row
    labels = dict.fromkeys([*(label for label in order if label in rows), *rows])
    return [rows[label] for label in labels], list(dict.fromkeys(commands))


def _joined(old: dict, new: dict) -> dict:
    if "report" not in old or "report" not in new:
        return new if "report" in new else old
    known, found = _ways(old), _ways(new)
    if "eager" in found:
        return new
    ways = [*old["report"]["ways"], *(w for name, w in found.items() if name not in known)]
    return old | {"report": old["report"] | {"ways": ways}}


def _where(measured: Sequence[dict], commands: list[str]) -> list[str]:
    lines = [f"Commands: {', '.join(f'`{command}`' for command in commands)}."]
    if measured:
        reports = [row["report"] for row in measured]
        machine, dates = reports[0]["machine"], sorted(r["date"][:10] for r in reports)
        threads = f", {machine['threads']} threads" if machine["device"] == "cpu" else ""
        lines.insert(0, f"{machine['name']}{threads}, torch {machine['torch']}, Triton "
                        f"{machine['triton']}, Python {machine['python']}, {dates[-1]}.")
    return lines


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    cells = [head, ["---"] * len(head), *rows]
    return ["| " + " | ".join(row) + " |" for row in cells]


# -- against the targets --


def _targets(rows: Sequence[dict]) -> list[str]:
    """A case that was not measured says why."""
    head = ["case", "predicted, ms", "measured, ms", "best other way", "best / torchweld",
            "at least", "kernels", "error L2 (eager)", "met", "not measured"]
    wanted = list(dict.fromkeys(n for row in rows if "report" in row for n in _ways(row)))
    return table(head, (_target_cells(row, wanted, len(head)) for row in rows))


def _target_cells(row: dict, wanted: Sequence[str], width: int) -> list[str]:
    case = row["case"]
    if "report" not in row:
        return [case["label"], row["problem"], *[""] * (width - 2)]
    ways, timed = _ways(row), _timed(row)
    ours, eager = ways[OURS], ways.get("eager", {})
    best = _best(timed)
    return [case["label"], _ms(row.get("predicted_ms")), _ms(_median(timed, OURS)),
            f"{best} {_ms(_median(timed, best))}" if best else "-", _ratio_text(timed),
            f"{case.get('at_least', 1.0):.2f}", str(ours.get("kernels") or "-"),
            f"{_error(ours)} ({_error(eager)}){_checked_at(case)}", _met(row),
            ", ".join(_missing(row, wanted)) or "-"]


def _met(row: dict) -> str:
    """yes, or what is missed."""
    case, ours, timed = row["case"], _ways(row)[OURS], _timed(row)
    best, error = _best(timed), ours.get("error")
    missed = [
        "time" if best is None or timed[best]["ratio"] < case.get("at_least", 1.0) else "",
        "kernels" if _too_many(ours.get("kernels"), case.get("most_kernels")) else "",
        "" if error else "error not checked",
        "error" if error and not error["within_contract"] else "",
    ]
    found = [what for what in missed if what]
    return f"no: {', '.join(found)}" if found else "yes"


def _too_many(kernels: int | None, most: int | None) -> bool:
    return most is not None and (kernels is None or kernels > most)


def _missing(row: dict, wanted: Iterable[str]) -> list[str]:
    """Ways that others were measured in and that would have applied here."""
    ways, timed = _ways(row), _timed(row)
    untimed = [name for name in wanted if name not in timed]
    return [n for n in untimed if DOES_NOT_APPLY not in (ways.get(n, {}).get("problem") or "")]


def _checked_at(case: dict) -> str:
    """The inputs' first lengths where the error was looked at, if they were cut for that."""
    return f" at {' x '.join(map(str, case['checked']))}" if case.get("checked") else ""


# -- all that was measured --


def _details(measured: Sequence[dict]) -> list[str]:
    """Milliseconds of each way, first calls, and memory."""
    found = dict.fromkeys(n for row in measured for n in _timed(row))
    names = [*(n for n in found if n != OURS), OURS]
    head = ["case", *(f"{name}, ms" for name in names), "first call, s: inductor, torchweld",
            "of which, s", "peak: eager, torchweld"]
    return table(head, (_detail_cells(row, names) for row in measured))


def _detail_cells(row: dict, names: Sequence[str]) -> list[str]:
    from torchweld.core.units import bytes_text

    ways, timed = _ways(row), _timed(row)
    ours, eager, inductor = (ways.get(n, {}) for n in (OURS, "eager", "inductor"))
    return [row["case"]["label"], *(_ms(_median(timed, name)) for name in names),
            f"{seconds(inductor)}, {seconds(ours)}{_second(row)}", _compiling(row),
            f"{bytes_text(eager.get('peak_bytes'))}, {bytes_text(ours.get('peak_bytes'))}"]


def _brief(measured: Sequence[dict]) -> list[str]:
    head = ["case", "eager, ms", "fastest other way, ms", "torchweld, ms", "speed-up over it"]
    return table(head, map(_brief_cells, measured))


def _brief_cells(row: dict) -> list[str]:
    """The speed-up is that of the two medians beside it, as they are printed."""
    timed = _timed(row)
    best, ours = _best(timed), _ms(_median(timed, OURS))
    theirs = _ms(_median(timed, best)) if best else ""
    return [row["case"]["label"], _ms(_median(timed, "eager")), f"{best} {theirs}" if best else "-",
            ours, f"{float(theirs) / float(ours):.2f}x" if best else "-"]


# -- parts of a row --


def _ways(row: dict) -> dict[str, dict]:
    return {way["name"]: way for way in row["report"]["ways"]}


def _timed(row: dict) -> dict[str, dict]:
    return {name: way["timing"] for name, way in _ways(row).items() if way["timing"]}


def _median(timed: dict[str, dict], name: str) -> float | None:
    return timed[name]["median_ms"] if name in timed else None


def _best(timed: dict[str, dict]) -> str | None:
    """The fastest other way, by its paired ratio to torchweld."""
    others = [name for name in timed if name != OURS]
    return min(others, key=lambda name: timed[name]["ratio"], default=None)


def _ratio_text(timed: dict[str, dict]) -> str:
    """The paired ratio to the fastest baseline; above 1 torchweld is ahead."""
    best = _best(timed)
    return f"{timed[best]['ratio']:.2f}" if best else "-"


def _ms(milliseconds: float | None) -> str:
    from torchweld.core.units import ms_text

    return "-" if milliseconds is None else ms_text(milliseconds)


def seconds(way: dict) -> str:
    return f"{way['first_call_s']:.1f}" if way.get("first_call_s") is not None else "-"


def _compiling(row: dict) -> str:
    """Where torchweld's first call went: all its graphs together."""
    from torchweld.core.stages import CompileSeconds

    graphs = row["report"].get("graphs", ())
    return str(CompileSeconds.of(graph["seconds"] for graph in graphs)) if graphs else "-"


def _second(row: dict) -> str:
    report = row.get("second", {}).get("report")
    return f" (second process {seconds(report['ways'][-1])})" if report else ""


def _error(way: dict) -> str:
    return f"{way['error']['relative_l2']:.1e}" if way.get("error") else "-"
