"""Chains on the CPU, by Triton's interpreter (TRITON_INTERPRET=1): one line for each result. In
float16: bfloat16 dots are wrong there."""

from __future__ import annotations

from dataclasses import replace

import chain_cases as cases
from product_check import problems
from torchweld.targets.find import named_target
from torchweld.templates.chain.schedule import ChainSchedule
from triton_cases import Case, tensors
from triton_interpreted import start
from triton_run import launches, prepare

A100 = named_target("A100")  # whose kernels do not begin early: that has no meaning here
ONE = ChainSchedule(16, 4, 1)  # a program walks over all rows
SOME = ChainSchedule(16, 4, 3)
WIDE = ChainSchedule(64, 4, 2)

ALL = [
    (cases.layers(64, (16, 32, 16), "f16"), SOME),
    (cases.layers(37, (3, 20, 4), "f16"), SOME),
    (cases.layers(37, (3, 20, 4), "f16"), ONE),
    (cases.layers(101, (63, 24, 40, 33), "f16", transposed=True), WIDE),
    (cases.layers(50, (7, 17, 31), "f16", keep=True, gap=3), SOME),
    (cases.layers("s0", (20, 16, 5), "f16", keep=True, sizes={"s0": 53}), SOME),
    (cases.layers(21, (24, 16, 20), "f16", batch=3), ChainSchedule(16, 4, 2)),
    (cases.layers(1, (24, 16, 20), "f16"), ONE),
    (cases.gated(37, (20, 33, 7), "f16"), SOME),
    (cases.gated(37, (20, 33, 7), "f16", residual=False), SOME),
    (cases.backward(64, (16, 32, 16), "f16"), SOME),
    (cases.backward(101, (4, 20, 33, 3), "f16"), SOME),
    (cases.backward(101, (4, 20, 33, 3), "f16", transposed=False), ONE),
    (cases.backward("s0", (17, 20, 5), "f16", sizes={"s0": 75}), SOME),
]  # fmt: skip


def run(case: Case, schedule: ChainSchedule) -> list[str]:
    made, bundle = tensors(case), cases.made(case, A100, schedule)
    prepare(case, bundle, made)
    launches(case, bundle, made, start)
    return problems(case, made)


def main() -> None:
    for case, schedule in ALL:
        found = run(case, replace(schedule))
        print(f"DIFFERS {case.name} {found}" if found else f"agrees {case.name}", flush=True)


if __name__ == "__main__":
    main()
