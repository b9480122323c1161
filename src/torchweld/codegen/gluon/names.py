"""The names that generated Gluon kernels use, for the versions of Triton that differ (3.6 on), and
how Triton's expressions differ from Gluon's."""

HEADER = '''import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared, mbarrier, tma, warpgroup_mma, warpgroup_mma_wait)
from triton.language.extra import libdevice

copy_in = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared
copy_out = getattr(tma, "async_store", None) or tma.async_copy_shared_to_global  # before 3.9


@gluon.jit
def inverse(x):
    """1 / x for x >= 1: one instruction, where a division has five for other numbers."""
    return gl.inline_asm_elementwise(
        "rcp.approx.ftz.f32 $0, $1;", "=r,r", [x], dtype=gl.float32, is_pure=True, pack=1)


@gluon.jit
def exp2_flushed(x):
    """exp2(x), zero where that is no normal number: one instruction in place of four."""
    return gl.inline_asm_elementwise(
        "ex2.approx.ftz.f32 $0, $1;", "=r,r", [x], dtype=gl.float32, is_pure=True, pack=1)


@gluon.jit
def exp_flushed(x):
    return exp2_flushed(x * 1.4426950408889634)

'''

GRID_CONTROL = '''from triton.language.extra.cuda import gdc_launch_dependents as begin_next
from triton.language.extra.cuda import gdc_wait as await_previous

synchronize = getattr(gl, "barrier", None) or gl.thread_barrier  # before 3.7
'''

# Between a warp's own loads of shared memory and the arrival that gives it back to copies by TMA:
# those are of another proxy, and may overtake the loads. Without it, convolutions with a residual
# had some wrong rows on an H100.
AFTER_LOADS = "fence_async_shared()"

# Each instruction of an epilogue costs time, and where products hide it power, which slows them
# down. What is added to one may be flushed to zero before.
_DIALECT = (
    ("tl.full((), ", "gl.full((), "),
    ("1 / (1 + ", "1 * inverse(1 + "),
    ("2 / (1 + ", "2 * inverse(1 + "),
    ("(1 + tl.exp(", "(1 + exp_flushed("),
    ("1 - tl.exp2(", "1 - exp2_flushed("),
)


def dialect(text: str) -> str:
    """Triton's expressions as Gluon takes them: nearly all are the same."""
    for theirs, ours in _DIALECT:
        text = text.replace(theirs, ours)
    return text
