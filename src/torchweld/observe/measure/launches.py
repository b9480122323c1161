"""How many kernels Inductor's code for the CPU runs in a call."""

from __future__ import annotations

import re
from pathlib import Path

# In the wrapper that it writes: a generated kernel, a library call, an ATen fallback.
_CALL = re.compile(r"^\s+(?:\w+ = )?(?:cpp_fused\w*\(|extern_kernels\.|torch\.ops\.)", re.M)


def inductor_cpu_calls(cache: Path) -> int:
    """Kernels and library calls in the code that Inductor wrote for the CPU under `cache`; 0 if
    there is none that this can read."""
    texts = (path.read_text() for path in cache.rglob("*.py"))
    return sum(len(_CALL.findall(text)) for text in texts if "def call(" in text)
