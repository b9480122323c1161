"""What ptxas made of a kernel, read for one of its faults.

ptxas 12.8 (of Triton 3.6 and 3.7) merges the descriptors of two wgmma instructions whose right
factors share their memory but lie in it in different directions. In tiles of 16 and 32 columns it
then adds to a uniform register that nothing has written yet: on an H100 such a product was wrong,
or read memory that is not there. Such binaries are refused. Nothing else that it makes has been
seen to read a uniform register before it is written.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from pathlib import Path

from torchweld.core.errors import BuildError

_INSTRUCTION = re.compile(r"\s*/\*[0-9a-f]+\*/\s+(?:@!?U?P\w+\s+)?(\S+)\s*(.*?)\s*;")
_REGISTER = re.compile(r"\bUR(\d+)\b")
_DESCRIPTOR = re.compile(r"gdesc\[UR(\d+)\]")
_WRITES = ("U", "S2UR", "R2UR", "CS2UR", "LDCU")
_WRITES_NOTHING = ("UBLK", "UTMA", "UCGABAR", "USETMAXREG", "UISETP", "UPLOP3")
# The last operand of an instruction: whether the right factor is contiguous along its columns.
_RIGHT = re.compile(r"wgmma\.mma_async[^;]*, [01];")


def is_suspect(ptx: str) -> bool:
    """Whether right factors of wgmma lie in both directions."""
    return len({found[-2] for found in _RIGHT.findall(ptx)}) > 1


def check(name: str, cubin: bytes) -> None:
    """Raises BuildError for a binary that reads a uniform register before it is written. Without
    nvdisasm, which Triton brings, nothing is checked."""
    line = unset_read(disassembled(cubin))
    if line:
        raise BuildError(f"{name}: ptxas reads a register that is not set: {line}")


def unset_read(sass: str) -> str | None:
    """The first instruction that reads a uniform register which none before it, in the text's
    order, writes."""
    known: set[int] = set()
    for line in sass.splitlines():
        if ".section" in line and ".text." in line:
            known = set()
        found = _INSTRUCTION.match(line)
        if found is None:
            continue
        operation, operands = found.groups()
        reads, writes = _reads_and_writes(operation, operands)
        if not reads <= known:
            return f"{operation} {operands}"
        known |= writes
    return None


def _reads_and_writes(operation: str, operands: str) -> tuple[set[int], set[int]]:
    """Numbers of uniform registers. An operation on 64 bits writes two."""
    first, _, rest = operands.partition(",")
    if operation.startswith("HGMMA"):
        return _described(rest), set()
    writes = operation.startswith(_WRITES) and not operation.startswith(_WRITES_NOTHING)
    reads = {int(u) for u in _REGISTER.findall(rest if writes else operands)}
    made = {int(u) for u in _REGISTER.findall(first)} if writes else set()
    wide = ".64" in operation or ".WIDE" in operation
    return reads, made | {u + 1 for u in made} if wide else made


def _described(operands: str) -> set[int]:
    """The registers of both factors' descriptors; of the right one's if the left is in ordinary
    registers."""
    own = (2, 3) if operands.strip().startswith("R") else range(4)
    return {int(u) + k for u in _DESCRIPTOR.findall(operands) for k in own}


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
