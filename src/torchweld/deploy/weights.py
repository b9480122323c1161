"""Tensors to bytes and back: inside an archive, row by row, or in a file beside it (safetensors, or
torch's zip, which is read with `weights_only`)."""

from __future__ import annotations

import ctypes
import hashlib
import io
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch

from torchweld.core import dtypes
from torchweld.core.errors import UsageError, one_line
from torchweld.deploy.archive import Reader, Writer
from torchweld.deploy.records import Held, WeightsFile

_PLAIN = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
_SAFETENSORS = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8,
    "U8": torch.uint8, "BOOL": torch.bool, "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
}  # fmt: skip
_OUTSIDE = "file:"  # before the name that a tensor has in the file beside, in the place of a part


def held(name: str, kind: str, number: int, tensor: torch.Tensor, part: str) -> Held:
    """Errors: UsageError for a tensor that cannot be kept."""
    if type(tensor) not in _PLAIN or tensor.layout != torch.strided or tensor.is_complex():
        raise UsageError(f"{name} is a {type(tensor).__name__} of dtype {tensor.dtype} and layout "
                         f"{tensor.layout}, which an archive cannot hold",
                         do="make it a plain tensor of real numbers")
    dtype = dtypes.torch_name(tensor.dtype)
    shape, device = tuple(tensor.shape), str(tensor.device)
    return Held(name, kind, number, dtype, device, shape, tensor.stride(), part)


def stored(tensor: torch.Tensor, writer: Writer) -> str:
    """The name of the part with its values."""
    rows = tensor.detach().cpu().contiguous()
    return writer.add("weights", ".bin", _memory(rows))


def read(record: Held, reader: Reader) -> torch.Tensor:
    """A new tensor with the record's layout. Errors: UsageError."""
    rows = torch.empty(record.shape, dtype=_dtype(record))
    if reader.part(record.part).bytes != rows.nbytes:
        raise UsageError(f"{reader.path} is damaged: {record.name} has another size",
                         do="copy or export it anew")
    reader.read_into(record.part, _memory(rows))
    return laid_out(rows, record)


def laid_out(rows: torch.Tensor, record: Held) -> torch.Tensor:
    """`rows`, on the record's device with its strides, in memory that torch has aligned."""
    found = torch.empty_strided(record.shape, record.strides, dtype=rows.dtype,
                                device=record.device)  # fmt: skip
    once = tuple(slice(0, 1) if s == 0 else slice(None) for s in record.strides)
    found[once].copy_(rows[once])  # of what is repeated, one is written
    return found


def outside(name: str) -> str:
    """The part of a tensor that the file beside has as `name`."""
    return _OUTSIDE + name


def from_file(record: Held, tensors: Mapping[str, torch.Tensor]) -> torch.Tensor | None:
    """The tensor of the file beside; None: it is a part. Errors: UsageError."""
    if not record.part.startswith(_OUTSIDE):
        return None
    rows = tensors.get(record.part.removeprefix(_OUTSIDE))
    if rows is None or tuple(rows.shape) != record.shape or rows.dtype != _dtype(record):
        raise UsageError(f"the file of weights has no {record.name} as it was exported",
                         do="export the model again")
    return laid_out(rows, record)


def names_in(path: Path, state: Iterable[tuple[str, str, torch.Tensor]]) -> dict[int, str]:
    """The name that each tensor of `state` (name, kind, tensor) has in the file, by its id; buffers
    may be missing there. Errors: UsageError if the file has other values."""
    there, found, missing = tensors_in(_content(path), path), {}, {}
    for name, kind, tensor in state:
        if name not in there:
            missing[id(tensor)] = (name, kind)
        elif not same_values(there[name], tensor):
            raise UsageError(f"{path} has another {name} than the model", do="save it anew")
        else:
            found.setdefault(id(tensor), name)
    lost = [n for key, (n, kind) in missing.items() if kind == "parameter" and key not in found]
    if lost:
        raise UsageError(f"{path} has no {lost[0]}", do="save model.state_dict() there")
    return found


def write_beside(path: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    """torch's zip of `tensors`, whole or not at all. Errors: UsageError."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        torch.save({name: t.detach() for name, t in tensors.items()}, beside)
        os.replace(beside, path)
    except (OSError, RuntimeError) as error:
        beside.unlink(missing_ok=True)
        raise UsageError(f"{path} cannot be written: {one_line(error)}") from None


def described(path: Path, archive: Path) -> WeightsFile:
    """The record of a file with weights, by which an archive at `archive` finds it. Errors:
    UsageError."""
    content = _content(path)
    folder, target = archive.parent.resolve(), path.resolve()
    inside = target.is_relative_to(folder)
    name = str(target.relative_to(folder)) if inside else str(target)
    digest = hashlib.sha256(content).hexdigest()
    return WeightsFile(name, _form(content), digest, len(content))


def read_file(path: Path, record: WeightsFile) -> dict[str, torch.Tensor]:
    """The tensors of the file, by name. Errors: UsageError, also for one with another hash."""
    content = _content(path, record.bytes + 1)
    if len(content) != record.bytes or hashlib.sha256(content).hexdigest() != record.sha256:
        raise UsageError(f"{path} is not the file of weights that the archive was exported with: "
                         "its hash differs", do="copy it anew, or export the model again")
    return tensors_in(content, path)


def tensors_in(content: bytearray, path: Path) -> dict[str, torch.Tensor]:
    """Of safetensors or torch's zip. Errors: UsageError."""
    try:
        if _form(content) == "safetensors":
            return _safetensors(content)
        found = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
        found = found if all(isinstance(v, torch.Tensor) for v in found.values()) else None
    except Exception as error:
        raise UsageError(f"{path} cannot be read as weights: {one_line(error)}",
                         do="give a safetensors file, or torch.save of a state_dict") from None
    if found is None:
        raise UsageError(f"{path} holds more than tensors", do="save model.state_dict()")
    return found


def same_values(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Bit by bit, NaN included."""
    a, b = (t.detach().cpu().contiguous() for t in (a, b))
    return a.shape == b.shape and a.dtype == b.dtype and _memory(a) == _memory(b)


def _form(content: bytes | bytearray) -> str:
    return "torch" if content[:2] == b"PK" else "safetensors"


def _content(path: Path, most: int | None = None) -> bytearray:
    """Up to `most` bytes, read once: what is hashed is what is used."""
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            content = bytearray(size if most is None else min(size, most))
            del content[file.readinto(content) :]
            return content
    except OSError as error:
        raise UsageError(f"the weights {path} cannot be read: {error.strerror}",
                         do="name their file: torchweld.load(path, weights=...)") from None


def _safetensors(content: bytearray) -> dict[str, torch.Tensor]:
    """Eight bytes with the length of a JSON header, the header, the values row by row."""
    start = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(bytes(content[8:start]))
    header.pop("__metadata__", None)
    return {name: _slice(content, start, **told) for name, told in header.items()}


def _slice(content: bytearray, start: int, dtype: str, shape: list[int], data_offsets):
    first, last = data_offsets
    rows = torch.empty(shape, dtype=_SAFETENSORS[dtype])
    values = memoryview(content)[start + first : start + last]
    _memory(rows)[:] = values  # raises ValueError for another size
    return rows


def _dtype(record: Held) -> torch.dtype:
    found = getattr(torch, record.dtype, None)
    if not isinstance(found, torch.dtype):
        raise UsageError(f"{record.name} has the unknown dtype {record.dtype}")
    return found


def _memory(rows: torch.Tensor) -> memoryview:
    """The bytes of a contiguous tensor of the CPU, which must outlive them."""
    kind = ctypes.c_char * rows.nbytes
    array = kind.from_address(rows.data_ptr()) if rows.nbytes else kind()
    return memoryview(array).cast("B")
