"""Any Python program with AddressSanitizer inside the C++ kernels that it compiles.

    python bench/address_sanitizer.py -m torchweld.exact.campaign --check compiled --seeds 500
    python bench/address_sanitizer.py -m pytest -q tests/cpu/test_convolutions.py
    python bench/address_sanitizer.py bench/problems.py --files bench/problem_files/u_mixed --check

A kernel that reads or writes outside of its tensors ends the process at that instruction, with the
tensor's size and the place of its allocation. So does one of torch.compile's, which calls the same
compiler. Parts of one allocation are not told apart: temporaries share an arena. Kernels are kept
in a cache of their own (`--cache FOLDER` before the program; default: a new one). Exits as the
program does; 1 at a fault, 2 without a compiler that has the sanitizer.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

FLAGS = ("-fsanitize=address", "-fno-omit-frame-pointer")
# libstdc++ too: the sanitizer looks up what throws before torch brings it.
PRELOADED = ("libasan.so", "libstdc++.so")
OPTIONS = "detect_leaks=0:detect_odr_violation=0:exitcode=1"


def environment(folder: Path, compiler: str) -> dict[str, str]:
    """That of a process whose kernels are checked. Errors: FileNotFoundError without the
    libraries."""
    wrapper = folder / "compiler"
    wrapper.write_text(f'#!/bin/sh\nexec "{compiler}" "$@" {" ".join(FLAGS)}\n')
    wrapper.chmod(0o700)
    libraries = [_library(compiler, name) for name in PRELOADED]
    return os.environ | {
        "CXX": str(wrapper),
        "TORCHWELD_CACHE_DIR": str(folder / "kernels"),
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        "LD_PRELOAD": " ".join(libraries),
        "ASAN_OPTIONS": OPTIONS,
    }


def _library(compiler: str, name: str) -> str:
    asked = [compiler, f"-print-file-name={name}"]
    found = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    if not os.path.isabs(found):  # the compiler says the bare name where there is none
        raise FileNotFoundError(f"{compiler} has no {name}")
    return found


def main() -> int:
    program, cache = sys.argv[1:], None
    if program[:1] == ["--cache"]:
        cache, program = Path(program[1]), program[2:]
    if not program or program[0] in ("-h", "--help"):
        print(__doc__)
        return 0
    compiler = shutil.which(os.environ.get("CXX") or "g++")
    with tempfile.TemporaryDirectory(prefix="asan-") as made:
        folder = cache or Path(made)
        folder.mkdir(parents=True, exist_ok=True)
        try:
            if compiler is None:
                raise FileNotFoundError("no C++ compiler")
            checked = environment(folder.resolve(), compiler)
        except (FileNotFoundError, subprocess.CalledProcessError) as error:
            print(f"AddressSanitizer is not here: {error}", file=sys.stderr)
            return 2
        return subprocess.run([sys.executable, *program], env=checked).returncode


if __name__ == "__main__":
    sys.exit(main())
