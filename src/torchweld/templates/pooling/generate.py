"""Max pooling in C++: tw_pool of pooling.h, one compilation for all."""

from __future__ import annotations

from pathlib import Path

from torchweld.codegen.source import BufferArg, KernelBundle, KernelSource, SizeArg
from torchweld.ir.nodes import Comp
from torchweld.templates.conv.cpu.generate import header
from torchweld.templates.pooling.schedule import CpuPooling

_NAME = "tw_max_pool"
_LOOPS = Path(__file__).with_name("pooling.h")
_TEXT = """extern "C" void NAME(void* const* P, const int64_t* S) {
  const tw_pooling a = {(const float*)P[0], (float*)P[1], SIZES};
  #pragma omp parallel if (a.planes * a.out_height * a.out_width > 4096)
  tw_pool(a, omp_get_thread_num(), omp_get_num_threads());
}
"""


def generate(comp: Comp, pooling: CpuPooling) -> KernelBundle:
    """The C++ of `comp`, which is `pooling`."""
    numbers = [*pooling.sides, *pooling.outputs[1:]]
    for field in ("taps", "stride", "dilation", "padding"):
        numbers += [getattr(w, field) for w in pooling.windows]
    sizes = ", ".join(f"S[{i}]" for i in range(len(numbers)))
    text = header(_LOOPS) + _TEXT.replace("NAME", _NAME).replace("SIZES", sizes)
    args = (BufferArg(pooling.image), BufferArg(pooling.result), *map(SizeArg, numbers))
    return KernelBundle(comp.name, (KernelSource("cpp", _NAME, text, args),))
