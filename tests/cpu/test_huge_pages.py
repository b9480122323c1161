"""Large new tensors ask for large pages, small ones do not."""

from __future__ import annotations

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


def test_a_first_program_lets_the_heap_keep_what_is_freed(monkeypatch):
    freed = []
    huge_pages.keep_freed_memory.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(torch, "empty", lambda size, dtype: freed.append(size * dtype.itemsize))
        huge_pages.keep_freed_memory()
        huge_pages.keep_freed_memory()
    assert freed == [31 << 20]  # glibc heeds blocks of up to 32 MB
