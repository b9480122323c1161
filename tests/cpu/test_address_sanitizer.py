"""bench/address_sanitizer.py ends a program whose kernel leaves its tensor, and no other."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[2] / "bench" / "address_sanitizer.py"
PROGRAM = """
import ctypes, torch
from pathlib import Path
from torchweld.core.options import Options
from torchweld.runtime.build import compile_cpp
from torchweld.runtime.cache import open_cache
text = 'extern "C" void add(float* x, long n) { for (long i = 0; i < n; ++i) x[i] += 1; }'
flags = ("-O2", "-shared", "-fPIC")
library, *_ = compile_cpp(text, open_cache(Options()), flags)
x = torch.zeros(40)
ctypes.CDLL(str(library)).add(ctypes.c_void_p(x.data_ptr()), ctypes.c_long(N))
assert x.sum() == 40
print("ran to the end")
"""


def run(count: int, folder: Path) -> subprocess.CompletedProcess:
    program = PROGRAM.replace("N)", f"{count})")
    asked = [sys.executable, str(TOOL), "--cache", str(folder), "-c", program]
    return subprocess.run(asked, capture_output=True, text=True)


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_a_kernel_that_leaves_its_tensor(tmp_path):
    good, bad = run(40, tmp_path), run(41, tmp_path)
    if good.returncode == 2:
        pytest.skip(good.stderr)
    assert good.returncode == 0 and "ran to the end" in good.stdout
    assert bad.returncode == 1 and "heap-buffer-overflow" in bad.stderr
    assert "160-byte region" in bad.stderr


def test_a_machine_without_a_compiler_is_told(tmp_path):
    asked = [sys.executable, str(TOOL), "-c", "print(1)"]
    done = subprocess.run(asked, capture_output=True, text=True, env={"PATH": str(tmp_path)})
    assert done.returncode == 2 and "no C++ compiler" in done.stderr
