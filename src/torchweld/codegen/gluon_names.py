"""The names that generated Gluon kernels use, for the versions of Triton that differ (3.6 on)."""

HEADER = """import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared, mbarrier, tma, warpgroup_mma, warpgroup_mma_wait)
from triton.language.extra import libdevice

copy_in = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared
copy_out = getattr(tma, "async_store", None) or tma.async_copy_shared_to_global  # before 3.9
"""


def dialect(text: str) -> str:
    """Triton's expressions as Gluon takes them: all but one are the same."""
    return text.replace("tl.full((), ", "gl.full((), ")
