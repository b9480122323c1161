"""Triton sources to binaries.

All that differs between Triton's versions (3.6 and later) is here and in `triton_compile.py`:
`ASTSource` and the attributes that promise alignment. Sources live in memory: Triton reads them
through `linecache`.
"""

from __future__ import annotations

import linecache
from dataclasses import dataclass
from hashlib import sha256
from threading import Lock
from typing import Union

_IMPORTING = Lock()
_ALIGNMENT = [["tt.divisibility", 16]]


@dataclass(frozen=True, slots=True)
class Tiles:
    """The type of a TMA descriptor: tiles of `block` elements of a type ("bf16")."""

    element: str
    block: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Job:
    """The function `name` of `text`, in the language triton or gluon, for compute capability `arch`
    (80, 90, ...). `types`: of its arguments, in order; `aligned`: positions of those that are
    multiples of 16; `constants`: by name; `options`: of Triton's compiler, by name."""

    language: str
    name: str
    text: str
    arch: int
    types: tuple[Union[str, Tiles], ...]
    aligned: tuple[int, ...]
    constants: tuple[tuple[str, int], ...]
    options: tuple[tuple[str, object], ...]


def import_triton() -> None:
    """All that kernels and their compilation import, by one thread at a time: Triton's modules
    import each other, so that another thread would find parts of them."""
    with _IMPORTING:
        import triton.compiler
        import triton.experimental.gluon._runtime
        import triton.experimental.gluon.language.nvidia.hopper
        import triton.language.extra.cuda
        import triton.language.extra.libdevice  # noqa: F401


def build(job: Job):
    """Triton's CompiledKernel, from its cache if it is there; no GPU needed."""
    import_triton()
    import triton
    from triton.backends.compiler import GPUTarget

    target = GPUTarget("cuda", job.arch, 32)
    return triton.compile(described(job), target=target, options=dict(job.options))


def described(job: Job):
    """Triton's description of what to compile: types of arguments, constants, promised
    alignment."""
    if job.language == "gluon":
        from triton.experimental.gluon._runtime import GluonASTSource as Source
    else:
        from triton.compiler import ASTSource as Source
    function = jit_function(job.name, job.text)
    names = function.arg_names
    types = dict(zip(names, map(_type, job.types)))
    return Source(
        fn=function,
        signature={n: types.get(n, "constexpr") for n in names},
        constexprs={(names.index(n),): v for n, v in job.constants},
        attrs={(i,): _ALIGNMENT for i in job.aligned},
    )


def _type(told: str | Tiles) -> str:
    """As a signature has it."""
    if isinstance(told, str):
        return told
    from triton.experimental.gluon import language as gl

    dtype = {"bf16": gl.bfloat16, "fp16": gl.float16, "fp32": gl.float32}[told.element]
    layout = gl.NVMMASharedLayout.get_default_for(list(told.block), dtype)
    return f"tensordesc<{told.element}[{','.join(map(str, told.block))}],{layout!r}>"


def jit_function(name: str, text: str):
    """The @triton.jit function `name` that `text` defines."""
    filename = f"<torchweld {name} {sha256(text.encode()).hexdigest()[:40]}>"
    linecache.cache[filename] = (len(text), None, text.splitlines(True), filename)
    namespace = {"__name__": f"torchweld_kernel_{name}"}
    exec(compile(text, filename, "exec"), namespace)
    return namespace[name]
