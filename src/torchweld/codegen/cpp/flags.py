"""How generated C++ is compiled: g++ SOURCE FLAGS -o LIBRARY.

-fno-math-errno and -fno-trapping-math let loops with selects vectorise without changing values.
Contraction is off, so that `a * b + c` of the user's model rounds as eager's two operations do;
fastmath.h writes its fused multiply-adds out. -fwrapv: integer overflow wraps, as in torch. Never
-ffast-math: it turns denormals off in the whole process. Loops that copy stay loops: what gcc makes
of them for AVX2 stores 16 bytes at a time, and 32 bytes read from there wait (a sum took 17 times
as long). Vectors have 512 bits where there is AVX-512, for the same reason: headers read vectors of
that width. By default gcc fills them with two stores of 256 bits on an Intel Xeon, and add +
LayerNorm took three times as long.

-fno-thread-jumps: gcc does not follow what one condition says of the next. gcc 12 makes a choice
between truth values of that, which it has no vectors for. Without, it vectorises 11 more loops of
434 kernels (of the 28 programs of `f_kernels`, AVX-512).

Kernels are linked with what they call, not with what g++ adds by itself (the C++ library, code for
the begin and end of a program): 11 ms of the 60 to 120 ms that a small kernel takes. So there is no
code that cleans up behind exceptions, which kernels have none of: it calls the C++ library.
"""

import platform

_X86 = platform.machine() in ("x86_64", "AMD64")

COMPILER = "g++"
FLAGS = (
    "-O3",
    "-march=native",
    "-fopenmp",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-ffp-contract=off",
    "-fwrapv",
    "-fno-tree-loop-distribute-patterns",
    "-fno-thread-jumps",
    "-shared",
    "-fPIC",
    "-fno-exceptions",
    "-std=c++17",
    "-pipe",
    *(("-mprefer-vector-width=512",) if _X86 else ()),
    *("-nostdlib", "-lgomp", "-lm", "-lc", "-lgcc"),
)
# Flags for sources that have such a line. Where addresses are computed as they are written: gcc 12
# else makes one pointer of another by their difference (-fivopts), forgets what `restrict` says,
# and moves loads of rows that are read backwards past stores. Where loops over a block of rows have
# a length that gcc knows: up to 16 steps it else writes out before it looks for vectors, and then
# finds few (steps of a Viterbi decoder took three times as long).
PLAIN_ADDRESSES, WHOLE_BLOCKS = "// plain addresses", "// whole blocks"
NOTED = {PLAIN_ADDRESSES: "-fno-ivopts", WHOLE_BLOCKS: "--param=max-completely-peel-times=7"}
