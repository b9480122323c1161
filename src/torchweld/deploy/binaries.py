"""The machine code of a program: into an archive, and out of one."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

from torchweld.codegen.source import KernelBundle, KernelSource
from torchweld.core.errors import BuildError, EnvironmentProblem, UsageError
from torchweld.core.logs import logger
from torchweld.core.options import Options
from torchweld.deploy.archive import Reader, Writer
from torchweld.deploy.gpu import GpuShipper
from torchweld.deploy.machine import python_tag
from torchweld.runtime import dispatch
from torchweld.runtime.build import compile_cpp, load_function
from torchweld.runtime.cache import content_of, digest, open_cache
from torchweld.runtime.cubin import DriverKernel
from torchweld.runtime.loaded import Loaded
from torchweld.runtime.native import calling_driver, native_in, native_library
from torchweld.runtime.plan_cache import with_texts

_NONE = ""  # the text of a source that did not compile: its Comp is interpreted


class Shipper:
    """Puts what one program needs into an archive."""

    def __init__(self, writer: Writer, loaded: Loaded, options: Options) -> None:
        self._writer, self._artifacts = writer, open_cache(options)
        self.gpu = GpuShipper(writer, bool(loaded.graph.symbols))

    def bundles(self, loaded: Loaded) -> dict[str, KernelBundle]:
        """The kernels, with the name of a part, or the number of a GPU's kernel, in the place of
        each source's text. Errors: UsageError."""
        numbers: dict[int, str] = {}

        def part(source: KernelSource) -> str:
            function = loaded.functions.get(source)
            if function is None:
                return _NONE
            if source.language != "cpp":
                if id(function) not in numbers:
                    numbers[id(function)] = str(self.gpu.add(function))
                return numbers[id(function)]
            return self._library(compile_cpp(source.text, self._artifacts)[0])

        return with_texts(loaded.bundles, part)

    def helpers(self, loaded: Loaded) -> str | None:
        """The walker over C++ kernels, if there are any."""
        walked = loaded.helpers is not None
        return self._library(dispatch.library(self._artifacts)) if walked else None

    def native(self, loaded: Loaded) -> str | None:
        wanted = loaded.native is not None
        return self._library(native_library(self._artifacts)) if wanted else None

    def _library(self, path: Path) -> str:
        try:
            return self._writer.add("kernels", ".so", content_of(path))
        except OSError as error:
            raise UsageError(f"a kernel cannot be read: {error}", do="export it again") from None


class Shipped:
    """runtime.load.Binaries from an archive: nothing is compiled. A library is loaded from the
    cache of this user, where it goes first."""

    def __init__(self, reader: Reader, options: Options) -> None:
        self._reader, self._artifacts = reader, open_cache(options)

    def __enter__(self) -> Shipped:
        return self

    def __exit__(self, *error) -> None:
        """Nothing is under way."""

    def functions(
        self, bundles: Mapping[str, KernelBundle], record=None
    ) -> dict[KernelSource, object]:
        """Errors: EnvironmentProblem where one does not load."""
        self.provide()
        sources = dict.fromkeys(s for b in bundles.values() for s in b.sources)
        return {s: self._function(s) for s in sources if s.text != _NONE}

    def helpers(self) -> dispatch.Helpers:
        name = self._reader.manifest.helpers
        try:
            return dispatch.helpers_in(self._library(name))
        except BuildError as error:
            raise _not_loaded(error) from None

    def native(self, on_gpu: bool) -> ModuleType | None:
        """None, and calls take the longer way, where it was built for another Python."""
        manifest = self._reader.manifest
        if manifest.native is None or manifest.needs.python != python_tag():
            return None
        try:
            module = native_in(self._library(manifest.native))
            return calling_driver(module) if on_gpu else module
        except ImportError as error:
            logger("runtime").info("calls go through Python: %s", error)
            return None

    def provide(self) -> None:
        """What the runtime compiles by itself where it can, it finds compiled."""
        from torchweld.runtime.triton_compile import provide

        for source, number in self._reader.manifest.extra:
            provide(source, self._kernel(source, number))

    def _kernel(self, source: KernelSource, number: int) -> DriverKernel:
        binaries = self._reader.manifest.gpu_kernels[number]
        codes = {binary.code: self._reader.read(binary.code) for binary in binaries}
        return DriverKernel(source, binaries, codes)

    def _function(self, source: KernelSource):
        if source.language != "cpp":
            return self._kernel(source, int(source.text))
        try:
            return load_function(self._library(source.text), source.name)
        except BuildError as error:
            raise _not_loaded(error) from None

    def _library(self, name: str | None) -> Path:
        """A file with the part `name`, whose hash is checked here, whatever lay in the cache."""
        part = self._reader.part(name)
        key, content = digest("archive", part.sha256), self._reader.read(name)
        try:
            path, _ = self._artifacts.make(key, ".so", lambda to: to.write_bytes(content))
            if hashlib.sha256(content_of(path)).hexdigest() != part.sha256:
                raise OSError(f"{path} is another file")
        except OSError as error:
            raise EnvironmentProblem(f"the archive's kernels cannot be unpacked: {error}",
                                     do="set TORCHWELD_CACHE_DIR to a folder of your own") from None
        return path


def _not_loaded(error: Exception) -> EnvironmentProblem:
    return EnvironmentProblem(
        f"a kernel of the archive cannot be loaded: {error}",
        do="set TORCHWELD_CACHE_DIR to a folder whose files may be run, or export the model here")
