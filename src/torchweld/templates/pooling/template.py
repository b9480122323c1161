"""Max pooling of float32 images on a CPU, with what follows it."""

from __future__ import annotations

from collections.abc import Iterator

from torchweld.codegen.source import KernelBundle
from torchweld.templates.pointwise_reduce.price import cost
from torchweld.templates.pooling import generate as code
from torchweld.templates.pooling.schedule import CpuPooling, cpu_pooling
from torchweld.templates.template import Problem, Template, no_reference


def match(problem: Problem) -> CpuPooling | None:
    return cpu_pooling(problem.comp, problem.buffers)


def supports(pooling: CpuPooling, problem: Problem) -> str | None:
    return None if "avx512" in problem.target.features else "no masked loads"


def candidates(pooling: CpuPooling, problem: Problem) -> Iterator[CpuPooling]:
    yield pooling


def price(pooling: CpuPooling, schedule: CpuPooling, problem: Problem) -> float:
    return cost(problem.comp, problem.buffers, problem.hints, problem.target).seconds


def generate(pooling: CpuPooling, schedule: CpuPooling, problem: Problem) -> KernelBundle:
    return code.generate(problem.comp, pooling, problem.buffers)


TEMPLATE = Template("pooling", match, supports, candidates, price, generate, no_reference)
