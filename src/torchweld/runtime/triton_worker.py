"""Compiles kernels written in Triton: in this process, or as a process of its own, without torch.

A fault of the compiler ends the process that it runs in: LLVM aborts where an assertion of its own
does not hold. So triton_workers.py has kernels compiled in processes that run this file: a request
a line of JSON, an answer a line. What they make is in Triton's cache on disk, where others find it.
The file imports nothing of torchweld, so that such a process is ready in half a second.

All that differs between Triton's versions (3.6 and later) is here and in triton_compile.py:
`ASTSource`, and the attributes that promise alignment. Sources live in memory: Triton reads them
through `linecache`.
"""

from __future__ import annotations

import hashlib
import json
import linecache
import os
import select
import sys
from contextlib import suppress
from dataclasses import asdict, dataclass
from threading import Lock

IDLE_S = 120.0  # after which a process ends
_IMPORTING = Lock()
_ALIGNMENT = [["tt.divisibility", 16]]


class NotCached(Exception):
    """Triton's cache lacks the kernel."""


@dataclass(frozen=True, slots=True)
class Request:
    """A kernel for compute capability `arch` (80, 90, ...). `types`: of its arguments, as Triton
    names them; `aligned`: positions of those that are multiples of 16; `constants`: by name;
    `options`: of the compiler."""

    language: str
    name: str
    text: str
    types: tuple[str, ...]
    aligned: tuple[int, ...]
    constants: tuple[tuple[str, object], ...]
    options: tuple[tuple[str, object], ...]
    arch: int

    def line(self) -> str:
        return json.dumps(asdict(self))


# Looked for once, for what Triton finds out about itself first: half a second.
_NONE = Request(
    "triton", "none", "import triton\n\n\n@triton.jit\ndef none(x):\n    pass\n",
    ("*fp32",), (), (), (), 90,
)  # fmt: skip


def request_of(line: str) -> Request:
    given = json.loads(line)
    pairs = {n: tuple(map(tuple, given[n])) for n in ("constants", "options")}
    lists = {n: tuple(given[n]) for n in ("types", "aligned")}
    return Request(**{**given, **lists, **pairs})


def import_triton() -> None:
    """All that kernels and their compilation import, by one thread at a time: Triton's modules
    import each other, so that another thread would find parts of them."""
    with _IMPORTING:
        import triton.compiler
        import triton.experimental.gluon._runtime
        import triton.experimental.gluon.language.nvidia.hopper
        import triton.language.extra.cuda
        import triton.language.extra.libdevice  # noqa: F401


def compiled(request: Request, cached: bool = False):
    """Triton's CompiledKernel. `cached`: only from its cache; raises NotCached if it is not there.
    Raises what Triton raises."""
    import_triton()
    import triton
    from triton.backends.compiler import GPUTarget

    target = GPUTarget("cuda", request.arch, 32)
    source = described(request, cached)
    return triton.compile(source, target=target, options=dict(request.options))


def described(request: Request, cached: bool = False):
    """Triton's description of what to compile: types of arguments, constants, promised
    alignment."""
    if request.language == "gluon":
        from triton.experimental.gluon._runtime import GluonASTSource as Source
    else:
        from triton.compiler import ASTSource as Source

    class Cached(Source):
        def make_ir(self, *_):  # asked for where the cache lacks it
            raise NotCached(request.name)

    function = jit_function(request.name, request.text)
    names = function.arg_names
    types = dict(zip(names, request.types))
    return (Cached if cached else Source)(
        fn=function,
        signature={n: types.get(n, "constexpr") for n in names},
        constexprs={(names.index(n),): v for n, v in request.constants},
        attrs={(i,): _ALIGNMENT for i in request.aligned},
    )


def jit_function(name: str, text: str):
    """The @triton.jit function that `text` defines."""
    filename = f"<torchweld {name} {hashlib.sha256(text.encode()).hexdigest()[:40]}>"
    linecache.cache[filename] = (len(text), None, text.splitlines(True), filename)
    namespace = {"__name__": f"torchweld_kernel_{name}"}
    exec(compile(text, filename, "exec"), namespace)
    return namespace[name]


def last_line(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[-1]


def own_key() -> str | None:
    """Of Triton's files, if this process has read them all, which takes half a second."""
    made = getattr(sys.modules.get("triton.runtime.cache"), "triton_key", None)
    info = getattr(made, "cache_info", None)
    return made() if info is not None and info().currsize else None


def serve(key: str | None) -> None:
    """Answers requests from standard input until it ends, or there are none for IDLE_S. An answer
    is null, or what went wrong; the first says that the process is ready. `key`: own_key() of
    another process with the same Triton."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what compilers print is no answer
    import_triton()
    caching = sys.modules["triton.runtime.cache"]
    if key is not None and hasattr(caching, "triton_key"):
        caching.triton_key = lambda: key
    with suppress(NotCached):
        compiled(_NONE, cached=True)
    print(json.dumps(None), file=answers)
    while select.select([sys.stdin], [], [], IDLE_S)[0]:
        line = sys.stdin.readline()
        if not line:
            return
        print(json.dumps(_failure(line)), file=answers)


def _failure(line: str) -> str | None:
    try:
        compiled(request_of(line))
    except Exception as error:
        return last_line(error)
    return None
