"""A fault of ptxas, and the way around it.

A wgmma instruction takes a descriptor of 64 bits: below the address of its factor in shared memory,
above how the factor lies there. Where one piece of shared memory holds factors that lie in several
ways, Triton (3.6 and 3.7) adds to one address several numbers with bits in both halves. ptxas 12.8
then may lose the register with the address, and add to another: on an H100 such products were
wrong, or read memory that is not there. It does not where the lower half is added first, and the
bits above set after it.

What ptxas makes of that is read, too. In no good binary has an addition been seen to read a
register before it is written, nor both halves of an address in one register.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

_INSTRUCTION = re.compile(r"\s*/\*[0-9a-f]+\*/\s+(?:@!?U?P\w+\s+)?([A-Z]\S*)\s*(.*?)\s*;")
_REGISTER = re.compile(r"\b(U?R)(\d+)\b")
_PREDICATE = re.compile(r"!?U?P(\d|T)")
_ADDITIONS = ("IADD3", "UIADD3")
_UPPER = ("IADD3.X", "UIADD3.X")
_NEAR = 12  # instructions between the halves of an addition
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
_LOW = 0xFFFFFFFF
# A descriptor is an address with bits above it, which is the place of one tile, or a sum.
_SET = re.compile(r"or\.b64\s+%rd\d+, (%rd\d+), (-?\d{13,});")
_ADDED = re.compile(r"add\.s64(\s+)(%rd\d+), (%rd\d+), (-?\d{13,});")
_USED = re.compile(r"wgmma\.mma_async[^;]*;")


def is_suspect(ptx: str) -> bool:
    """Whether one piece of shared memory is described in several ways to wgmma, by additions."""
    ways: dict[str, set[int]] = defaultdict(set)
    for _, _, address, number in _ADDED.findall(ptx) if "wgmma" in ptx else ():
        ways[address].add(int(number) >> 32)
    if not ways:
        return False
    for address, bits in _SET.findall(ptx):
        ways[address].add(int(bits) >> 32)
    return any(len(found) > 1 for found in ways.values())


def in_two_steps(ptx: str) -> str:
    """`ptx`, its descriptors made by an addition to the lower half, then by bits of the upper one,
    which is empty in an address: elsewhere such bits are set, too."""
    addresses = {address for address, _ in _SET.findall(ptx)}
    used = set(re.findall(r"%rd\d+", " ".join(_USED.findall(ptx))))

    def two_steps(found: re.Match) -> str:
        space, result, address, number = found.groups()
        if address not in addresses or result not in used:
            return found[0]
        low = int(number) & _LOW
        add = f"add.s64{space}{result}, {address}, {low};"
        return f"{add}\n\tor.b64{space}{result}, {result}, {int(number) - low};"

    return _ADDED.sub(two_steps, ptx)


def fault(cubin: bytes) -> str | None:
    """The addition in a binary that gives the fault away. Without nvdisasm, which Triton brings,
    nothing is found."""
    return faulty_addition(disassembled(cubin))


def faulty_addition(sass: str) -> str | None:
    """The first addition that reads a register which nothing before it, in the text's order,
    writes; or one of 64 bits whose halves are read from one register."""
    known: set[str] = set()
    carried: dict[str, _Half] = {}
    for place, (operation, operands) in enumerate(_instructions(sass)):
        if not operation:
            known, carried = set(), {}
            continue
        results, read = _parts(operation, operands)
        if operation.startswith(_ADDITIONS) and not _names(read) <= known:
            return f"{operation} {operands}"
        if operation in _UPPER and _is_one_register(carried, place, read):
            return f"{operation} {operands}"
        written = {f"{kind}{int(number) + k}" for kind, number in _REGISTER.findall(results)
                   for k in range(_width(operation))}  # fmt: skip
        known |= written
        carried = {p: half for p, half in carried.items() if half.register not in written}
        result, *carries = results.split(",")
        if operation in _ADDITIONS and carries:
            carried |= _half(place, result, carries[0], read)
    return None


def _instructions(sass: str) -> Iterator[tuple[str, str]]:
    """Operations and operands; ("", "") where a kernel begins."""
    for line in sass.splitlines():
        if ".section" in line and ".text." in line:
            yield "", ""
        elif found := _INSTRUCTION.match(line):
            yield found.groups()


@dataclass(frozen=True, slots=True)
class _Half:
    """The lower half of an addition of 64 bits, to one register that keeps its value."""

    place: int
    register: str


def _half(place: int, result: str, carry: str, read: str) -> dict[str, _Half]:
    """By the predicate that it carries to."""
    names = _names(read) - {result}
    return {carry: _Half(place, *names)} if len(names) == 1 else {}


def _is_one_register(carried: Mapping[str, _Half], place: int, read: str) -> bool:
    """Whether an upper half is added to what the lower half was."""
    parts = read.split(",")
    halves = (half for carry, half in carried.items() if carry in parts)
    return any(place - h.place <= _NEAR and h.register in parts for h in halves)


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
