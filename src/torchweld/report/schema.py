"""The report as JSON: written, read back with every field checked, and documented."""

from __future__ import annotations

import os
from dataclasses import fields
from pathlib import Path
from types import NoneType, UnionType
from typing import Union, get_args, get_origin, get_type_hints

from torchweld.core.errors import UsageError
from torchweld.report import data

RECORDS = (
    data.Report,
    data.Machine,
    data.Subject,
    data.Way,
    data.Timing,
    data.Error,
    data.GraphPart,
    data.Group,
    data.Refused,
)


def to_json(report: data.Report) -> str:
    return _adapter().dump_json(report, indent=2).decode() + "\n"


def from_json(text: str) -> data.Report:
    """Errors: pydantic.ValidationError, with every field that is wrong."""
    return _adapter().validate_json(text)


def write_json(report: data.Report, path: Path) -> None:
    """Written beside `path`, then renamed, so that a reader never sees half of it."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_text(to_json(report))
        beside.replace(path)
    except OSError as error:
        raise UsageError(
            f"{path} cannot be written: {error.strerror}", do="name another file"
        ) from error


def markdown() -> str:
    """docs/report-schema.md."""
    intro = (
        "# The report as data\n\n`torchweld report TARGET --json FILE` writes one `Report`. "
        "Times and sizes have their unit in the name; `null` means that a figure could not be "
        "had. This page is made from `src/torchweld/report/data.py` by "
        "`python -m torchweld.report.schema`.\n"
    )
    return intro + "".join(_record_markdown(record) for record in RECORDS)


def _adapter():
    from pydantic import TypeAdapter  # only --json needs it

    return TypeAdapter(data.Report)


def _record_markdown(record: type) -> str:
    hints = get_type_hints(record, include_extras=True)
    rows = [_row(field.name, *get_args(hints[field.name])) for field in fields(record)]
    head = [
        "",
        f"## {record.__name__}",
        "",
        record.__doc__,
        "",
        "| field | type | meaning |",
        "|---|---|---|",
    ]
    return "\n".join([*head, *rows, ""])


def _row(name: str, kind, meaning: str) -> str:
    return f"| `{name}` | {_type_text(kind)} | {meaning} |"


def _type_text(kind) -> str:
    """str -> str;  list[Way] -> list of Way;  str | None -> str or null"""
    parts = [_type_text(part) for part in get_args(kind)]
    if isinstance(kind, UnionType) or get_origin(kind) is Union:
        return " or ".join(parts)
    if get_origin(kind) is list:
        return f"list of {parts[0]}"
    if get_origin(kind) is dict:
        return f"object of {parts[1]}"
    return {NoneType: "null", float: "number", int: "integer", str: "string", bool: "boolean"}.get(
        kind, kind.__name__
    )


if __name__ == "__main__":
    print(markdown(), end="")
