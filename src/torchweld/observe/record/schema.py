"""The report as JSON: written, read back with every field checked, and documented."""

from __future__ import annotations

import json
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Union, get_args, get_origin, get_type_hints

from torchweld.core.errors import UsageError
from torchweld.core.files import write_whole
from torchweld.observe.record import report as data
from torchweld.observe.record.reading import validated


def records_in(kind) -> list[type]:
    """The records that a value of this type can hold, in the order in which they are met."""
    inside, found = get_args(kind), []
    if is_dataclass(kind):
        inside, found = get_type_hints(kind).values(), [kind]
    for part in inside:
        found += records_in(part)
    return list(dict.fromkeys(found))


def to_json(report: data.Report) -> str:
    """As `from_json` reads it."""
    from pydantic import TypeAdapter  # only --json needs it

    return TypeAdapter(data.Report).dump_json(report, indent=2).decode() + "\n"


def from_json(text: str) -> data.Report:
    """Errors: UsageError, in one line: no JSON (cut short), no report, another version, a field
    that is wrong."""
    try:
        values = json.loads(text)
    except ValueError as error:
        raise UsageError(f"it is not valid JSON: {error}", do="make it again") from None
    version = values.get("schema_version") if isinstance(values, dict) else None
    if version != data.SCHEMA_VERSION:
        found = "not a report" if version is None else f"a report of schema {version}"
        found = "a profile, not a report" if "launches" in (values or ()) else found
        raise UsageError(
            f"it is {found}; this torchweld reads schema {data.SCHEMA_VERSION}",
            do="make it again with torchweld report --json",
        )
    return validated(data.Report, values, "it", do="make it again")


def read_json(path: Path) -> data.Report:
    """Errors: UsageError, which names the file."""
    try:
        return from_json(path.read_text())
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not text"
        raise UsageError(f"{path} cannot be read: {why}", do="give the JSON of a report") from None
    except UsageError as error:
        raise UsageError(f"{path}: {error.what}", do=error.do) from None


def write_json(report: data.Report, path: Path) -> None:
    """To `path`, whole or not at all. Errors: UsageError if it cannot be written."""
    write_whole(to_json(report), path)


def markdown() -> str:
    """docs/report-schema.md."""
    intro = (
        "# The report as data\n\n`torchweld report TARGET --json FILE` writes one `Report`. "
        "Times and sizes have their unit in the name; `null` means that a figure could not be "
        "had. This page is made from `src/torchweld/observe/record/report.py` and "
        "`src/torchweld/observe/record/profile.py` by "
        "`python -m torchweld.observe.record.schema`.\n"
    )
    return intro + "".join(_record_markdown(record) for record in records_in(data.Report))


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
    """str -> str;  list[Way] -> list of Way;  str | None -> str or null;  tuple[float, int] ->
    (number, integer)"""
    parts = [_type_text(part) for part in get_args(kind)]
    if isinstance(kind, UnionType) or get_origin(kind) is Union:
        return " or ".join(parts)
    if get_origin(kind) is list:
        return f"list of {parts[0]}"
    if get_origin(kind) is tuple:
        return f"({', '.join(parts)})"
    if get_origin(kind) is dict:
        return f"object of {parts[1]}"
    return {NoneType: "null", float: "number", int: "integer", str: "string", bool: "boolean"}.get(
        kind, kind.__name__
    )


if __name__ == "__main__":
    print(markdown(), end="")
