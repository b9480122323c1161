"""Plain data read back as records, every field checked."""

from __future__ import annotations

from typing import TypeVar

from torchweld.core.errors import UsageError

T = TypeVar("T")


def validated(kind: type[T], values: object, what: str, do: str | None = None) -> T:
    """`values` (lists, dicts, numbers, strings) as a `kind`. Errors: UsageError, in one line, that
    says where `what` is wrong, and what to `do`."""
    from pydantic import TypeAdapter, ValidationError  # only reading needs it

    try:
        return TypeAdapter(kind).validate_python(values)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise UsageError(f"{what} is wrong at {place}: {first['msg']}", do=do) from None
