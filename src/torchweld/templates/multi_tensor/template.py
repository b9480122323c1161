"""One pointwise kernel on several lists of tensors: optimiser steps (schedule.py)."""

from __future__ import annotations

from collections.abc import Iterator

from torchweld.codegen.source import KernelBundle
from torchweld.templates.multi_tensor import cpu, gpu
from torchweld.templates.multi_tensor.schedule import TensorList, tensor_list
from torchweld.templates.pointwise_reduce.price import cost
from torchweld.templates.template import Problem, Template, no_reference


def match(problem: Problem) -> TensorList | None:
    return tensor_list(problem.comp, problem.buffers)


def supports(tensors: TensorList, problem: Problem) -> str | None:
    return None


def candidates(tensors: TensorList, problem: Problem) -> Iterator[str]:
    yield f"{len(tensors.rows)} tensors"


def price(tensors: TensorList, schedule: str, problem: Problem) -> float:
    return cost(problem.comp, problem.buffers, problem.hints, problem.target).seconds


def generate(tensors: TensorList, schedule: str, problem: Problem) -> KernelBundle:
    if problem.target.kind == "cuda":
        return gpu.generate(problem.comp, tensors, problem.target)
    return cpu.generate(problem.comp, tensors)


TEMPLATE = Template("multi_tensor", match, supports, candidates, price, generate, no_reference)
