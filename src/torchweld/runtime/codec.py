"""Frozen records to JSON and back. Only classes that are named here (or by the caller) are ever
built; nothing is executed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum

from torchweld.codegen.source import (
    BufferArg,
    DescriptorArg,
    GridDim,
    KernelBundle,
    KernelSource,
    SizeArg,
)
from torchweld.core import dtypes
from torchweld.core.dtypes import DType
from torchweld.ir.nodes import Buffer
from torchweld.ir.size import Poly

_CLASS = "$"
_RECORDS = (
    KernelBundle, KernelSource, BufferArg, SizeArg, DescriptorArg, GridDim, Buffer, Poly,
)  # fmt: skip


def encode(thing, also: Iterable[type] = ()) -> str:
    """JSON text. Raises TypeError for what `decode` could not build again."""
    return json.dumps(
        _plain(thing, {c.__name__ for c in (*_RECORDS, *also)}), separators=(",", ":")
    )


def decode(text: str, also: Iterable[type] = ()):
    """What `encode` was given; sequences come back as tuples. Raises ValueError, KeyError or
    TypeError for other text."""
    return _record(json.loads(text), {c.__name__: c for c in (*_RECORDS, *also)})


def _plain(thing, known: set[str]):
    if thing is None or isinstance(thing, (bool, int, float, str)):
        return thing
    if isinstance(thing, DType):
        return {_CLASS: "DType", "name": thing.name}
    if isinstance(thing, Mapping):
        return {_text(k): _plain(v, known) for k, v in thing.items()}
    if isinstance(thing, (tuple, list)):
        return [_plain(v, known) for v in thing]
    name = type(thing).__name__
    if isinstance(thing, Enum) and name in known:
        return {_CLASS: name, "value": thing.value}
    if not is_dataclass(thing) or name not in known:
        raise TypeError(f"{name} has no JSON form")
    return {_CLASS: name} | {f.name: _plain(getattr(thing, f.name), known) for f in fields(thing)}


def _record(plain, known: Mapping[str, type]):
    if isinstance(plain, list):
        return tuple(_record(v, known) for v in plain)
    if not isinstance(plain, dict):
        return plain
    values = {k: _record(v, known) for k, v in plain.items() if k != _CLASS}
    name = plain.get(_CLASS)
    if name is None:
        return values
    return dtypes.BY_NAME[values["name"]] if name == "DType" else known[name](**values)


def _text(key) -> str:
    if not isinstance(key, str) or key == _CLASS:
        raise TypeError(f"{key!r} cannot be a key")
    return key
