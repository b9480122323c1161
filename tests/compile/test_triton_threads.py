"""Kernels are compiled by several threads, the first of which import Triton."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from torchweld.runtime.triton_compile import import_triton

NAMES = ("triton.experimental.gluon._runtime", "triton.backends.compiler", "triton.compiler",
         "triton.language.extra.libdevice", "triton.experimental.gluon.language", "triton")

def use(name):
    import_triton()
    import_module(name)

assert "triton" not in sys.modules
sys.setswitchinterval(1e-5)
with ThreadPoolExecutor(len(NAMES)) as workers:
    list(workers.map(use, NAMES))
print("imported")
"""


def test_threads_that_import_triton_all_find_all_of_it():
    made = subprocess.run([sys.executable, "-W", "ignore", "-c", SCRIPT],
                          capture_output=True, text=True, check=False)  # fmt: skip
    assert made.stdout.strip() == "imported", made.stderr[-2000:]
