"""Attention kernels on the CPU, by Triton's interpreter (TRITON_INTERPRET=1): one line for each
result. In float16: bfloat16 dots are wrong there. Nothing begins early there either."""

from __future__ import annotations

from attention_cases import bundle_of, every
from product_check import problems
from torchweld.targets.find import named_target
from triton_cases import Case, tensors
from triton_interpreted import start
from triton_run import launches, prepare


def run(case: Case) -> list[str]:
    made, bundle = tensors(case), bundle_of(case, named_target("A100"))
    prepare(case, bundle, made)
    launches(case, bundle, made, start)
    counters = [n for n in bundle.zeroed if made[n].any()]
    return problems(case, made) + [f"{n} is not zero again" for n in counters]


def main() -> None:
    for case in every("f16"):
        found = run(case)
        print(f"DIFFERS {case.name} {found}" if found else f"agrees {case.name}", flush=True)


if __name__ == "__main__":
    main()
