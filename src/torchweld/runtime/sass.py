"""What ptxas made of a kernel, read for one of its faults.

ptxas 12.8 (of Triton 3.6 and 3.7) merges the descriptors of wgmma instructions whose factors share
their memory but lie in it in different ways. In narrow tiles (16 and 32 columns) it then adds to a
register that nothing has written yet: on an H100 such products were wrong, or read memory that is
not there. Such kernels are compiled again without wgmma. In no other binary has an addition been
seen to read a register before it is written.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections import defaultdict
from pathlib import Path

_INSTRUCTION = re.compile(r"\s*/\*[0-9a-f]+\*/\s+(?:@!?U?P\w+\s+)?([A-Z]\S*)\s*(.*?)\s*;")
_REGISTER = re.compile(r"\b(U?R)(\d+)\b")
_PREDICATE = re.compile(r"!?U?P(\d|T)")
_ADDITIONS = ("IADD3", "UIADD3")
_WITHOUT_RESULT = (
    "ST", "RED", "BAR", "BRA", "EXIT", "UTMA", "UBLK", "SYNCS", "NOP", "BSSY", "BSYNC", "CALL",
    "RET", "WARP", "DEPBAR", "FENCE", "MEMBAR", "ERRBAR", "CCTL", "NANOSLEEP", "LDGSTS", "USETMAX",
    "ACQBULK", "PREEXIT", "UCGABAR",
)  # fmt: skip
# Registers that a result has, by what the operation's name holds; 1 else.
_WIDTHS = (
    ("HGMMA", 128), ("QGMMA", 128), ("IGMMA", 128), ("MMA", 4), ("LDSM", 4), (".128", 4),
    (".64", 2), ("WIDE", 2), ("F64", 2), ("DADD", 2), ("DMUL", 2), ("DFMA", 2), ("CS2R", 2),
)  # fmt: skip
# What a descriptor is made of: the address of a tile, and how it lies there.
_DESCRIBED = re.compile(r"(?:or\.b64|add\.s64)\s+%rd\d+, (%rd\d+), (-?\d{13,});")


def is_suspect(ptx: str) -> bool:
    """Whether one piece of shared memory is described in several ways to wgmma."""
    if "wgmma.mma_async" not in ptx:
        return False
    ways: dict[str, set[int]] = defaultdict(set)
    for address, described in _DESCRIBED.findall(ptx):
        ways[address].add(int(described) >> 32)
    return any(len(found) > 1 for found in ways.values())


def fault(cubin: bytes) -> str | None:
    """The addition in a binary that reads a register before it is written. Without nvdisasm, which
    Triton brings, nothing is found."""
    return unset_read(disassembled(cubin))


def unset_read(sass: str) -> str | None:
    """The first addition that reads a register which nothing before it, in the text's order,
    writes."""
    known: set[str] = set()
    for line in sass.splitlines():
        if ".section" in line and ".text." in line:
            known = set()
        found = _INSTRUCTION.match(line)
        if found is None:
            continue
        operation, operands = found.groups()
        results, read = _parts(operation, operands)
        if operation.startswith(_ADDITIONS) and not _names(read) <= known:
            return f"{operation} {operands}"
        for kind, number in _REGISTER.findall(results):
            known |= {f"{kind}{int(number) + k}" for k in range(_width(operation))}
    return None


def _parts(operation: str, operands: str) -> tuple[str, str]:
    """Results, of which some may be predicates, and what is read."""
    if operation.startswith(_WITHOUT_RESULT):
        return "", operands
    parts = [p.strip() for p in operands.split(",")]
    end = 1
    while end < len(parts) and _PREDICATE.fullmatch(parts[end - 1]):
        end += 1
    if operation.startswith(_ADDITIONS):  # carries follow the result
        while end < len(parts) and _PREDICATE.fullmatch(parts[end]):
            end += 1
    return ",".join(parts[:end]), ",".join(parts[end:])


def _names(operands: str) -> set[str]:
    return {kind + number for kind, number in _REGISTER.findall(operands)}


def _width(operation: str) -> int:
    return next((width for part, width in _WIDTHS if part in operation), 1)


def disassembled(cubin: bytes) -> str:
    """The text of a binary; "" where there is no nvdisasm."""
    try:
        from triton import knobs

        tool = knobs.nvidia.nvdisasm.path
    except (ImportError, AttributeError, RuntimeError):
        return ""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "kernel.cubin")
        path.write_bytes(cubin)
        done = subprocess.run([tool, "-c", path], capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else ""
