"""The rows of bench/problems.py as a table, the slowest first, and what was said besides."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tables import DOES_NOT_APPLY, OURS, table

SLOWER = 0.95  # of the best other way's speed
INEXACT = 3.0  # times eager's error
EAGER_TOO = "EagerFails"  # in a problem that is not torchweld's


def rendered(rows: Mapping[str, dict]) -> str:
    """Markdown. `rows`: by the problem's name. Those that failed come first, then those with the
    smallest ratio of the best other way's time, then those with the largest error."""
    ordered = sorted(rows.items(), key=_key)
    ways = list(dict.fromkeys(way for row in rows.values() for way in row.get("ms", {})))
    ways.sort(key=OURS.__eq__)
    on_gpu = any("device_us" in row for row in rows.values())
    head = ["problem", "graphs", "kernels", "first call, s", "error / eager's",
            *(f"{way}, ms" for way in ways), "best other / torchweld",
            *(["device, us: others, torchweld"] if on_gpu else []), ""]  # fmt: skip
    lines = table(head, (_cells(name, row, ways, on_gpu) for name, row in ordered))
    said = [line for name, row in ordered for line in _said(name, row)]
    return "\n".join([*lines, "", summary(dict(ordered)), *(["", *said] if said else [])])


def _key(item: tuple[str, dict]) -> tuple:
    name, row = item
    return "problem" not in row, row.get("ratio", float("inf")), -row.get("error", 0.0), name


def _cells(name: str, row: dict, ways: Iterable[str], on_gpu: bool) -> list[str]:
    times = row.get("ms", {})
    graphs = str(row.get("graphs", "-"))
    if row.get("in_eager"):
        graphs += f" (+{row['in_eager']} in eager)"
    cells = [name, graphs, str(row.get("kernels", "-")), _number(row.get("first_call_s"), ".1f")]
    cells += [error_text(row), *(_number(times.get(w), ".4g") for w in ways)]
    cells.append(_number(row.get("ratio"), ".2f"))
    if on_gpu:
        device = row.get("device_us", {})
        cells.append(" ".join(_number(device.get(w), ".0f") for w in ways))
    return [*cells, ", ".join(marks(row))]


def error_text(row: dict) -> str:
    """Without an oracle, the relative difference from eager."""
    if "difference" in row:
        return f"{row['difference']:.0e} from eager"
    return _number(row.get("error"), ".2f")


def _number(value: float | None, how: str) -> str:
    return "-" if value is None else format(value, how)


def marks(row: dict) -> list[str]:
    """What is to be looked at: it failed, it is slower than another way, its error is large or
    outside the contract, its graph was cut, it warned."""
    found = {
        "FAILED": "problem" in row and EAGER_TOO not in row["problem"],
        "eager fails": EAGER_TOO in row.get("problem", ""),
        "SLOWER": row.get("ratio", 1.0) < SLOWER,
        "WRONG": bool(row.get("outside")),
        "ERROR": row.get("error", 0.0) > INEXACT,
        "cut": row.get("cut", False),
        "warned": bool(row.get("warnings")),
    }
    return [mark for mark, holds in found.items() if holds]


def _said(name: str, row: dict) -> list[str]:
    """The problems, errors and warnings of a row, a line each."""
    lines = [row["problem"]] if "problem" in row else []
    lines += row.get("outside", []) + row.get("warnings", [])
    lines += row.get("events", []) if row.get("cut") else []
    lines += [f"{w}: {p}" for w, p in row.get("problems", {}).items() if DOES_NOT_APPLY not in p]
    return [f"- {name}: {line}" for line in lines]


def summary(rows: Mapping[str, dict]) -> str:
    """How many of each kind, and the geometric mean of the ratios."""
    import math

    found = [mark for row in rows.values() for mark in marks(row)]
    told = [f"{found.count(mark)} {mark}" for mark in dict.fromkeys(found)]
    ratios = [row["ratio"] for row in rows.values() if "ratio" in row]
    if ratios:
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
        told.append(f"geometric mean of {len(ratios)} ratios {mean:.2f}")
    return f"{len(rows)} problems: {', '.join(told) or 'nothing to look at'}."
