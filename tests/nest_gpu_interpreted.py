"""Score nests on the CPU, by Triton's interpreter (TRITON_INTERPRET=1): one line for each result.
In float16 and float32: bfloat16 dots are wrong there."""

from __future__ import annotations

import re
import sys
from dataclasses import replace

from nest_gpu_cases import NestCase, generated, small
from product_check import problems
from torchweld.codegen.source import KernelSource
from torchweld.runtime.triton_compile import jit_function
from triton_cases import tensors
from triton_interpreted import renamed
from triton_run import launches, prepare

_LOOP = re.compile(r"for (\w+) in (?:tl\.)?range\((.*?)(?:, num_stages=\d)?\):")
_NUMBER = """

def _number(x):
    return int(x.handle.data.reshape(-1)[0]) if hasattr(x, "handle") else int(x)


@triton.jit
def _tanh(x):
    return 1 - 2 / (1 + tl.exp(2 * x))
"""


def start(source: KernelSource, grid, arguments) -> None:
    """Loop bounds as numbers: the interpreter's `range` fails on its own with NumPy 2.4."""
    text = renamed(source.text).replace("libdevice.tanh(", "_tanh(")
    text = _LOOP.sub(r"for \1 in range(*map(_number, (\2,))):", text)
    jit_function(replace(source, text=text + _NUMBER))[grid](*arguments)


def run(case: NestCase) -> list[str]:
    made, bundle = tensors(case), generated(case)
    prepare(case, bundle, made)
    launches(case, bundle, made, start)
    counters = [n for n in bundle.zeroed if made[n].any()]
    return problems(case, made) + [f"{n} is not zero again" for n in counters]


def main() -> None:
    for case in small():
        if any(word not in case.name for word in sys.argv[1:]):
            continue
        found = run(case)
        print(f"DIFFERS {case.name} {found}" if found else f"agrees {case.name}", flush=True)


if __name__ == "__main__":
    main()
