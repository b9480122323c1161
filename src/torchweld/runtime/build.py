"""C++ sources to addresses of functions: one compiler process per distinct source, results kept in
the cache."""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import signal
import subprocess
from contextlib import suppress
from functools import cache
from pathlib import Path

import torch

from torchweld.codegen.cpp import flags as cpp_flags
from torchweld.core.errors import BuildError, EnvironmentProblem
from torchweld.runtime.cache import Artifacts, digest

_COMPILE_SECONDS, _VERSION_SECONDS = 120, 20


def compile_cpp(
    text: str, artifacts: Artifacts, flags: tuple[str, ...] = cpp_flags.FLAGS
) -> tuple[Path, bool]:
    """(shared object, whether it was compiled now). Raises BuildError with the compiler's first
    lines, or where there is no room on disk, EnvironmentProblem without a compiler."""
    key = digest(text, *flags, *known_compiler(artifacts), *cpu_identity())
    try:
        return artifacts.make(key, ".so", lambda target: _run(find_compiler(), flags, text, target))
    except OSError as error:
        raise BuildError(f"a library is not written: {error.strerror}") from error


def known_compiler(artifacts: Artifacts) -> tuple[str, ...]:
    """The identity of the compiler; where there is none, of the one whose kernels these artifacts
    are. Raises EnvironmentProblem where there is neither."""
    key = digest("compiler", os.environ.get("CXX") or cpp_flags.COMPILER)
    try:
        compiler, version, torch_version = compiler_identity(find_compiler())
    except EnvironmentProblem:
        kept = artifacts.get(key, ".compiler")
        if kept is None:
            raise
        return (*kept.decode().split("\n"), torch.__version__)
    named = f"{compiler}\n{version}".encode()
    if artifacts.get(key, ".compiler") != named:
        artifacts.put(key, ".compiler", named)
    return compiler, version, torch_version


def load_function(library: Path, name: str) -> int:
    """The address of `extern "C"` function `name`. The library stays loaded for the life of the
    process."""
    try:
        function = getattr(_library(library), name)
    except (OSError, AttributeError) as error:
        library.unlink(missing_ok=True)  # a compiler that failed without saying so made it
        raise BuildError(f"{library.name} does not load: {error}") from error
    return ctypes.cast(function, ctypes.c_void_p).value


@cache
def find_compiler() -> str:
    """CXX of the environment, else g++, as a full path."""
    found = shutil.which(os.environ.get("CXX") or cpp_flags.COMPILER)
    if found is None:
        raise EnvironmentProblem("no C++ compiler", do=f"install {cpp_flags.COMPILER}, or set CXX")
    return found


@cache
def compiler_identity(compiler: str) -> tuple[str, ...]:
    _, said, _ = _finished([compiler, "--version"], _VERSION_SECONDS)
    return (compiler, said.partition("\n")[0], torch.__version__)


@cache
def cpu_identity() -> tuple[str, ...]:
    """What -march=native depends on."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return (platform.machine(), platform.processor())
    wanted = ("flags", "model name", "Features", "cpu family", "model\t", "stepping")
    first = {line.partition(":")[0]: line for line in reversed(lines) if line.startswith(wanted)}
    return (platform.machine(), *(first[name] for name in sorted(first)))


@cache
def _library(path: Path) -> ctypes.CDLL:
    return ctypes.CDLL(str(path))


def _run(compiler: str, flags: tuple[str, ...], text: str, target: Path) -> None:
    source = target.with_suffix(".cpp")
    source.write_text(text)
    more = (flag for note, flag in cpp_flags.NOTED.items() if note in text)
    command = [compiler, str(source), *more, *flags, "-o", str(target)]  # libraries behind users
    code, _, errors = _finished(command, _COMPILE_SECONDS)
    if code:
        raise BuildError(f"{Path(compiler).name} failed: " + " | ".join(errors.splitlines()[:6]))


def _finished(command: list[str], seconds: float) -> tuple[int, str, str]:
    """(exit status, output, errors) of a compiler. One that hangs is stopped with all processes
    that it started: they hold its pipes, which would be waited for."""
    name = Path(command[0]).name
    try:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL,
            text=True, errors="replace", start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        raise BuildError(f"{name} does not start: {error.strerror}") from error
    try:
        said, errors = process.communicate(timeout=seconds)
        return process.returncode, said, errors
    except subprocess.TimeoutExpired as error:
        raise BuildError(f"{name} took more than {seconds} s") from error
    finally:
        if process.poll() is None:  # hangs, or this thread is interrupted
            with suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
