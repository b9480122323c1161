"""The C++ that stands between a call and the driver (`native/`), built when it is first needed.

It needs a C++ compiler and Python's headers, as Triton does. Without them, or with a torch that
lacks what it looks up, there is none, and each of its users takes the longer way through Python.

holds(places, lengths)   `places`: dict, key, object, dict, ... : whether the dicts have these
                         objects there (None: or nothing); `lengths`: dict, its length, ...
are(args, positions, objects)   whether the list has these objects at these positions
watch(tensors)           a tuple of them; `unchanged` of the result compares address, dtype, shape
                         and strides of each with what they were then
expect(positions, slots, tensors)   inputs of a program, laid out as these tensors are
place(expected, args, tensors, bases)   puts inputs into their slots of the list `tensors`, their
                         addresses into the array at `bases`; False where one is laid out otherwise
new_tensor(slot, make), drop(slots), walk(walker, rows, count)   steps (steps.py): functions of
                         tensors by slot, bases and the address of these. `walk`: C++ kernels
launches(rows, count, stream_of, device, go_on)   a step: rows of a table (`launches.h`) on the
                         device's stream; go_on(bases, address, stream, row) where one is not taken
call(function, arguments, positions, fetches, target, names)   the step of a library call, whose
                         arguments at `positions` come by fetches and whose last is the target
check(slot, bytes, step)   a step: that one, where the byte behind the slot's address is set
window(slot, make, shape, strides, offset)   a fetch of a view, by make(tensor, ...)
call_of(positions, objects, watched, expected or None, tensors, bases, steps, fetches)   a function
                         of a list of inputs: `are`, `unchanged`, `place`, the steps and the outputs
                         in one; None, with nothing done, where these do not hold
hand_out(tensors)        (a list of new tensors over their memory, which they keep alive, what
                         `in_use` says is true while the storage of one of them lives)
launch(rows, first, count, bases, stream)   launches rows of a table (`launches.h`) from `first` on;
                         the number of the first that it could not, or `count`
join(graph, row, row)    puts two launches (`copies.py`) before and after all of a graph that is not
                         instantiated yet; their nodes, 0 for what cannot be or has no row
recorded(graph, buffers, row, node, made, row, node)   a graph, the copies into `buffers` before it
                         and those of what it `made` after it: nodes of it, else a launch `row` by
                         its address; 0: the driver copies one by one
replay(recorded, stream, sources, results)   copies, launches, copies; False, with nothing done,
                         where sources are not laid out like buffers, or a node has an address that
                         is not aligned
find(graph, (rows, count, ...), bases)   of each row of tables, by turns, its address and the kernel
                         that it is in a graph that is not instantiated yet; 0 if there is none
move(recorded, (row, node, ...), addresses by slot, slots, tensors)   from now on `sources` and
                         `results` of `replay` go on with what these kernels are told by slot: first
                         inputs, laid out as the tensors; False if the driver refuses
encode(...)              a TMA descriptor, at an address; False if the driver refuses
"""

from __future__ import annotations

import sysconfig
from collections.abc import Callable
from functools import cache
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType

import torch

from torchweld.core.errors import BuildError, EnvironmentProblem
from torchweld.core.logs import logger
from torchweld.core.options import Options
from torchweld.runtime.build import compile_cpp
from torchweld.runtime.cache import Artifacts, digest, open_cache
from torchweld.runtime.torch_private import exchange_table, handle_of, library_path

DRIVER = "libcuda.so.1"
_NAME = "torchweld_native"
_FOLDER = Path(__file__).parent / "native"


@cache
def native(artifacts: Artifacts) -> ModuleType | None:
    """The module, or None."""
    try:
        return native_in(native_library(artifacts))
    except (BuildError, EnvironmentProblem, ImportError) as error:
        logger("runtime").info("calls go through Python: %s", error)
        return None


@cache
def native_in(path: Path) -> ModuleType | None:
    """The module in a file that `native_library` made; None if it cannot use this torch. Errors:
    ImportError where it does not load."""
    module = _module(path)
    example = torch.empty(2, 3)
    told = library_path(), exchange_table(), example, handle_of(example)
    return module if module.use_torch(*told) else None


@cache
def with_driver(artifacts: Artifacts, library: str = DRIVER) -> ModuleType | None:
    """The module, if it can call the CUDA driver too."""
    return calling_driver(native(artifacts), library)


def calling_driver(module: ModuleType | None, library: str = DRIVER) -> ModuleType | None:
    return module if module is not None and module.use_driver(library) else None


def native_for(artifacts: Artifacts, on_gpu: bool) -> ModuleType | None:
    """What a program uses, on a GPU or a CPU."""
    return with_driver(artifacts) if on_gpu else native(artifacts)


def native_library(artifacts: Artifacts) -> Path:
    """The module's file, compiled if it is not there. Errors: as compile_cpp's."""
    headers = sorted(_FOLDER.glob("*.h"))
    sources = digest(*(path.read_text() for path in headers))
    include = f"-I{sysconfig.get_path('include')}", f"-I{_FOLDER}"
    flags = "-O2", "-std=c++17", "-shared", "-fPIC", *include, f"-DTORCHWELD_HEADERS={sources}"
    path, _ = compile_cpp((_FOLDER / "module.cpp").read_text(), artifacts, flags)
    return path


def _module(path: Path) -> ModuleType:
    loader = ExtensionFileLoader(_NAME, str(path))
    try:
        module = module_from_spec(spec_from_loader(_NAME, loader))
        loader.exec_module(module)
    except ImportError:
        path.unlink(missing_ok=True)  # a compiler that failed without saying so made it
        raise
    return module


def watch(
    options: Options, places: tuple, lengths: tuple, tensors: list[torch.Tensor]
) -> Callable[[], bool] | None:
    """A function that says whether places in dicts still hold what they did (`holds`), and the
    tensors are still where they were, with the same layout. None if there is no quick one: no C++,
    or modules of TorchScript, whose dicts are none."""
    module, owners = native(open_cache(options)), (*places[::3], *lengths[::2])
    if module is None or not all(isinstance(owner, dict) for owner in owners):
        return None
    holds, unchanged, watched = module.holds, module.unchanged, module.watch(tuple(tensors))
    return lambda: holds(places, lengths) and unchanged(watched)
