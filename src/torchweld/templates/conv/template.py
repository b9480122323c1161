"""Convolutions of float32 images on a CPU, with what follows them."""

from __future__ import annotations

from collections.abc import Iterator

from torchweld.codegen.source import KernelBundle
from torchweld.templates.conv.comp import convolution_comp
from torchweld.templates.conv.cpu import generate as code
from torchweld.templates.conv.cpu.schedule import CpuConvolution, cpu_convolution
from torchweld.templates.pointwise_reduce.price import cost
from torchweld.templates.template import Problem, Template


def match(problem: Problem) -> CpuConvolution | None:
    return cpu_convolution(problem.comp, problem.buffers, problem.hints)


def supports(convolution: CpuConvolution, problem: Problem) -> str | None:
    return None


def candidates(convolution: CpuConvolution, problem: Problem) -> Iterator[CpuConvolution]:
    yield convolution


def price(convolution: CpuConvolution, schedule: CpuConvolution, problem: Problem) -> float:
    return cost(problem.comp, problem.buffers, problem.hints, problem.target).seconds


def generate(
    convolution: CpuConvolution, schedule: CpuConvolution, problem: Problem
) -> KernelBundle:
    return code.generate(problem.comp, convolution, problem.buffers)


TEMPLATE = Template("conv", match, supports, candidates, price, generate, convolution_comp)
