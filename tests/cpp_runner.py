"""Compiles and runs generated C++ for tests, without the runtime: g++ to a temporary folder."""

from __future__ import annotations

import ctypes
import functools
import subprocess
import tempfile
from pathlib import Path

import torch

from torchweld.codegen.cpp.flags import COMPILER, FLAGS
from torchweld.codegen.source import BufferArg
from torchweld.core import dtypes
from torchweld.ir.interpret import run_comp
from torchweld.ir.nodes import Buffer
from torchweld.ir.size import evaluate
from torchweld.templates.pointwise_reduce.cpu.generate import generate


@functools.cache
def _folder() -> tempfile.TemporaryDirectory:
    return tempfile.TemporaryDirectory(prefix="torchweld-test-")


@functools.cache
def compiled(text: str, name: str, flags: tuple[str, ...] = ()):
    """The function `name` of a C++ text; `flags`: further ones."""
    base = Path(tempfile.mkdtemp(dir=_folder().name)) / name
    base.with_suffix(".cpp").write_text(text)
    shared = base.with_suffix(".so")
    command = [COMPILER, str(base.with_suffix(".cpp")), *FLAGS, *flags, "-o", str(shared)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[:4000] + text[text.index("static void part") :]
    return getattr(ctypes.CDLL(str(shared)), name)


def call(source, tensors, sizes, flags: tuple[str, ...] = ()) -> None:
    """Runs a KernelSource on tensors by buffer name and symbols by name."""
    pointers = [tensors[a.buffer].data_ptr() for a in source.args if isinstance(a, BufferArg)]
    numbers = [evaluate(a.size, sizes) for a in source.args if not isinstance(a, BufferArg)]
    function = compiled(source.text, source.name, flags)
    function(
        (ctypes.c_void_p * len(pointers))(*pointers), (ctypes.c_int64 * len(numbers))(*numbers)
    )


def layouts(comp, tensors, outputs) -> dict[str, Buffer]:
    """Buffers of `tensors` (actual strides) and of outputs {name: (shape, dtype[, strides])}."""
    found = {
        n: Buffer(n, tuple(t.shape), dtypes.from_torch(t.dtype), t.stride())
        for n, t in tensors.items()
    }
    for name, (shape, dtype, *strides) in outputs.items():
        empty = torch.empty(shape, device="meta")
        found[name] = Buffer(
            name, tuple(shape), dtype, tuple(strides[0]) if strides else empty.stride()
        )
    return found


def run(
    comp, tensors, outputs, sizes=None, symbolic=None, schedule=None, flags=()
) -> dict[str, torch.Tensor]:
    """The buffers that the generated kernel writes. `symbolic`: layouts with symbols, by name."""
    concrete = layouts(comp, tensors, outputs)
    bundle = generate(comp, {**concrete, **(symbolic or {})}, schedule)
    written = {
        n: torch.empty_strided(
            concrete[n].shape, concrete[n].strides, dtype=dtypes.to_torch(concrete[n].dtype)
        )
        for n in comp.writes
    }
    for name, start in bundle.prefill:
        written[name].copy_(tensors[start]) if isinstance(start, str) else written[name].fill_(
            start
        )
    for source in bundle.sources:
        call(source, {**tensors, **written}, sizes or {}, flags)
    return written


def reference(comp, tensors, outputs, sizes=None, exact=True) -> dict[str, torch.Tensor]:
    """The interpreter's buffers: in float64 if `exact`, else in the dtypes written."""
    inputs = {n: t.double() if exact and t.is_floating_point() else t for n, t in tensors.items()}
    return run_comp(comp, inputs, layouts(comp, tensors, outputs), sizes or {}, exact)


def error(found: torch.Tensor, exact: torch.Tensor) -> float:
    """Relative L2 error; infinite where NaN or infinities differ in place."""
    found = found.double()
    if not torch.equal(found.isnan(), exact.isnan()) or not torch.equal(
        found.isinf(), exact.isinf()
    ):
        return float("inf")
    finite = exact.isfinite()
    off = (found - exact)[finite].norm().item()
    return off / max(exact[finite].norm().item(), 1e-30) if off else 0.0
