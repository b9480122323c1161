"""A failing program as a file that needs torchweld and torch only."""

from __future__ import annotations

import hashlib
from pathlib import Path

from torchweld.exact.programs import MAKE_INPUT, PREAMBLE, Program

_SMALL_CHUNKS = """
from contextlib import ExitStack

from torchweld.exact.campaign.gates import opened

gates = ExitStack()  # they are open while it lives
gates.enter_context(opened())
"""
_MAIN = """
inputs = [
{inputs}
]
{device}eager = program(*inputs)
fused = torchweld.fuse(program)(*inputs)
for name, e, f in zip({outputs!r}, eager, fused):
    print(name, "eager", e.dtype, tuple(e.shape), e.stride(), "\\n", e)
    print(name, "fused", f.dtype, tuple(f.shape), f.stride(), "\\n", f)
"""


_ON = """\
inputs = [i.to({device!r}) for i in inputs]
"""


def reproducer(program: Program, found: list[str], device: str = "cpu") -> str:
    """The text of the file: what was found, the program, its inputs, eager and fused side by
    side."""
    remarks = "".join(f"# {line}\n" for text in found for line in text.splitlines()[:20])
    inputs = "\n".join(f"    {i.source}," for i in program.inputs)
    main = _SMALL_CHUNKS if program.small_chunks else ""
    moved = "" if device == "cpu" else _ON.format(device=device)
    main += _MAIN.format(inputs=inputs, outputs=program.outputs, device=moved)
    source = program.source_on(device)
    return f"{remarks}{PREAMBLE}\nimport torchweld\n\n{MAKE_INPUT}\n\n{source}\n{main}"


def write_reproducer(program: Program, found: list[str], folder: Path) -> Path:
    """Writes it to `folder` under a name that follows from the program."""
    folder.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256(repr(program).encode()).hexdigest()[:10]
    path = folder / f"fuzz_{digest}.py"
    path.write_text(reproducer(program, found))
    return path
