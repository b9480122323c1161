"""Large new tensors ask for large pages, small ones do not."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest
import torch

from torchweld.runtime import huge_pages
from torchweld.runtime.huge_pages import FRESH_BYTES, with_huge_pages


@pytest.mark.skipif(sys.platform != "linux", reason="Linux's advice")
def test_whole_pages_inside_the_tensor_are_named(monkeypatch):
    asked = []
    monkeypatch.setattr(huge_pages, "_madvise", lambda: lambda *args: asked.append(args))
    tensor = torch.empty(FRESH_BYTES + 4097, dtype=torch.uint8)
    assert with_huge_pages(tensor) is tensor
    ((start, length, advice),) = asked
    assert start % 4096 == 0
    assert length % 4096 == 0
    assert tensor.data_ptr() <= start
    assert start + length <= tensor.data_ptr() + tensor.nbytes
    assert advice == 14
    with_huge_pages(torch.empty(FRESH_BYTES, dtype=torch.uint8))
    assert len(asked) == 1


def test_memory_is_as_before():
    tensor = with_huge_pages(torch.empty(FRESH_BYTES // 4 + 1000))
    assert torch.equal(tensor.fill_(1.5), torch.full_like(tensor, 1.5))


FAULTS = """
import resource
import torch
from torch._subclasses import FakeTensorMode
from torchweld.runtime.huge_pages import keep_freed_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    [torch.ones(2 << 20) for _ in range(5)]
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

with FakeTensorMode():
    keep_freed_memory()
print([faults() for _ in range(4)][-1])
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc's heap")
def test_a_first_program_lets_the_heap_keep_what_is_freed():
    """Also one that is loaded while tensors are fake, as torch.compile does: 40 MB are 10240 pages,
    which the system cleared again each time."""
    environ = {k: v for k, v in os.environ.items() if "LD_PRELOAD" not in k and "MALLOC" not in k}
    command = [sys.executable, "-c", FAULTS]
    made = subprocess.run(command, env=environ, capture_output=True, text=True)
    assert int(made.stdout) < 200, made.stderr
