"""Gradients of the weights of convolutions in groups, of float32 images on a CPU."""

from __future__ import annotations

from collections.abc import Iterator

from torchweld.codegen.source import KernelBundle
from torchweld.templates.pointwise_reduce.price import cost
from torchweld.templates.template import Problem, Template
from torchweld.templates.weight_gradient import generate as code
from torchweld.templates.weight_gradient.comp import weight_gradient_comp
from torchweld.templates.weight_gradient.schedule import WeightSums, weight_sums


def match(problem: Problem) -> WeightSums | None:
    return weight_sums(problem.comp, problem.buffers)


def supports(sums: WeightSums, problem: Problem) -> str | None:
    return None


def candidates(sums: WeightSums, problem: Problem) -> Iterator[WeightSums]:
    yield sums


def price(sums: WeightSums, schedule: WeightSums, problem: Problem) -> float:
    return cost(problem.comp, problem.buffers, problem.hints, problem.target).seconds


def generate(sums: WeightSums, schedule: WeightSums, problem: Problem) -> KernelBundle:
    return code.generate(problem.comp, sums, problem.buffers)


TEMPLATE = Template(
    "weight_gradient", match, supports, candidates, price, generate, weight_gradient_comp
)
