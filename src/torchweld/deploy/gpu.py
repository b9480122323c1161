"""Kernels of a GPU, as Triton has compiled them, into an archive."""

from __future__ import annotations

from torchweld.codegen.source import DescriptorArg, KernelSource
from torchweld.core import dtypes
from torchweld.core.errors import UsageError
from torchweld.deploy.archive import Writer
from torchweld.ir.nodes import Extern, View
from torchweld.runtime.copies import copy_source
from torchweld.runtime.cubin import Binary
from torchweld.runtime.loaded import Loaded
from torchweld.runtime.odd_rows import move_for
from torchweld.templates.library.odd_rows import ODD_ROWS

_MOST_COPIED = 8  # tensors that one kernel copies: runtime.copies


class GpuShipper:
    """`kernels`: the binaries of each kernel so far. `sizes_vary`: any address inside may then be
    no multiple of 16 bytes."""

    def __init__(self, writer: Writer, sizes_vary: bool) -> None:
        self._writer, self._sizes_vary = writer, sizes_vary
        self.kernels: list[tuple[Binary, ...]] = []

    def add(self, launcher) -> int:
        """The number of a triton_compile.Launcher's kernel. Errors: UsageError for one that only
        Triton can start."""
        launcher.binary()
        if self._sizes_vary and not _has_descriptors(launcher.source):
            launcher.binary(launcher.pointers)
        made = sorted(launcher.compiled.items(), key=lambda item: len(item[0]))
        self.kernels.append(tuple(self._binary(launcher, *item) for item in made))
        return len(self.kernels) - 1

    def extra(self, loaded: Loaded) -> tuple[tuple[KernelSource, int], ...]:
        """Of kernels that no plan has: copies of a CUDA graph's inputs and outputs, and what
        library calls launch."""
        from torchweld.runtime.triton_compile import compile_here

        graph = loaded.graph
        moving = [n for n in graph.inputs if n is not None and n not in loaded.static_buffers]
        outputs = [v for v in graph.outputs if isinstance(v, View)]
        counts = {n for n in (len(moving), len(outputs)) if 0 < n <= _MOST_COPIED}
        # outputs that come after the graph are not copied
        counts |= set(range(1, min(len(outputs), _MOST_COPIED + 1)))
        sources = [copy_source(n, vectors) for n in sorted(counts) for vectors in (False, True)]
        sources += [_moves(node, loaded) for node in graph.nodes
                    if isinstance(node, Extern) and node.target == ODD_ROWS]
        return tuple((s, self.add(compile_here(s))) for s in dict.fromkeys(sources))

    def _binary(self, launcher, unaligned: tuple[int, ...], compiled) -> Binary:
        from torchweld.runtime.triton_compile import launchable

        handle = launchable(compiled, launcher.source)
        if handle is None:
            raise UsageError(f"kernel {launcher.source.name} can only be started by Triton",
                             do="export with fuse=False, or report it")
        code = self._writer.add("kernels", ".cubin", bytes(compiled.asm["cubin"]))
        return Binary(compiled.name, code, tuple(unaligned), handle)


def _has_descriptors(source: KernelSource) -> bool:
    return any(isinstance(a, DescriptorArg) for a in source.args)


def _moves(node: Extern, loaded: Loaded) -> KernelSource:
    right = node.args[1]
    dtype = dtypes.to_torch(loaded.graph.buffers[right.buffer].dtype)
    return move_for(right.shape[1], dtype.itemsize)
