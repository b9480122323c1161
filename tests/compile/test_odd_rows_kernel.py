"""The kernel that moves parts of a product of odd rows: it compiles without a GPU and does not
spill, and in Triton's interpreter the parts end where they belong."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest.importorskip("triton")

from torchweld.runtime.odd_rows import move_source
from torchweld.runtime.triton_compile import compile_source, resources

INTERPRETED = """
import torch
from torchweld.runtime.odd_rows import move_source, product_in_parts
from torchweld.runtime.triton_compile import jit_function

def move(part, last, target):
    rows, columns = target.shape
    source = move_source(part.stride(0), part.shape[1], columns)
    constants = dict(source.constants)
    grid = -(-columns // constants["BLOCK"]), rows, 1
    given = [t.view(torch.int16) for t in (part, last, target)]
    jit_function(source)[grid](*given, **constants)

torch.manual_seed(0)
a, b = torch.randn(700, 16).bfloat16(), torch.randn(2051, 16).bfloat16().t()
wanted = a.double() @ b.double()
print(float((product_in_parts(a, b, move) - wanted).norm() / wanted.norm()))
"""


@pytest.mark.parametrize("arch", [80, 90])
def test_it_compiles(arch):
    found = resources(compile_source(move_source(50304, 50256, 50257), arch))
    assert found.spill_bytes == 0 and found.wide_loads > 0


def test_parts_end_where_they_belong():
    done = subprocess.run(
        [sys.executable, "-c", INTERPRETED], capture_output=True, text=True, timeout=120,
        env=os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 3e-3
