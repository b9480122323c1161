"""The library that lets a torch without CUDA trace tensors that are said to be on a GPU
(guard.cpp)."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import torch

from torchweld.core.options import Options
from torchweld.runtime.build import compile_cpp
from torchweld.runtime.cache import open_cache


def guard_library(options: Options) -> Path | None:
    """The guard, compiled once into the cache; None for a torch that brings CUDA's own.

    It must be loaded before torch is imported, so in another process than this one. Raises
    EnvironmentProblem without a C++ compiler, BuildError where it does not compile.
    """
    if torch.version.cuda or torch.version.hip:
        return None
    text = files(__package__).joinpath("guard.cpp").read_text()
    return compile_cpp(text, open_cache(options), _flags(Path(torch.__file__).parent))[0]


def _flags(root: Path) -> tuple[str, ...]:
    include, lib = root / "include", root / "lib"
    return (
        "-O0", "-std=c++20", "-shared", "-fPIC", f"-I{include}",
        f"-I{include / 'torch/csrc/api/include'}", "-Wl,--no-as-needed", f"-L{lib}", "-lc10",
        "-ltorch_cpu", f"-Wl,-rpath,{lib}",
    )  # fmt: skip
