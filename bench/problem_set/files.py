"""Problems out of files of others, in the form of KernelBench: each defines a class `Model`, and
functions `get_inputs` and `get_init_inputs`. A file is run as a program of yours would be."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import nullcontext
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import torch

from problem_set import FOLDERS
from problem_set.core import Made, Problem, add


def add_files() -> None:
    """A problem for each file of the folders that FOLDERS names: groups are called as the folders,
    problems as group and file. Errors: ValueError for a folder without such files."""
    for folder in filter(None, os.environ.get(FOLDERS, "").split(os.pathsep)):
        paths = sorted(Path(folder).glob("*.py"))
        if not paths:
            raise ValueError(f"{folder} holds no problems (files *.py)")
        for path in paths:
            add(Problem(f"{path.parent.name}/{path.stem}", path.parent.name, _maker(path)))


def _maker(path: Path) -> Callable[[int], Made]:
    def make(scale: int) -> Made:
        """The files know one size. Many hold gigabytes: they are made where they will be."""
        file = _loaded(path)
        with nullcontext() if scale == 1 else torch.device("cuda"):
            settings, inputs = file.get_init_inputs(), list(file.get_inputs())
            model = file.Model(**settings) if isinstance(settings, dict) else file.Model(*settings)
        return model, inputs

    return make


def _loaded(path: Path) -> ModuleType:
    spec = spec_from_file_location(f"problem_{path.parent.name}_{path.stem}", path)
    file = module_from_spec(spec)
    sys.modules[spec.name] = file  # where dataclasses and Dynamo look for it
    spec.loader.exec_module(file)
    return file
