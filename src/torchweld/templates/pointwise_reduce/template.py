"""Pointwise operations, reductions and scans over rows and columns: what every Comp with a frame
can be. The most general template of each device, and so its last."""

from __future__ import annotations

from collections.abc import Iterator

from torchweld.codegen.source import KernelBundle
from torchweld.ir.frame import Frame, frame_of
from torchweld.templates.pointwise_reduce.cpu import generate as cpu_code
from torchweld.templates.pointwise_reduce.cpu import schedule as cpu
from torchweld.templates.pointwise_reduce.gpu import generate as gpu_code
from torchweld.templates.pointwise_reduce.gpu import schedule as gpu
from torchweld.templates.pointwise_reduce.gpu.default import candidates
from torchweld.templates.pointwise_reduce.gpu.prepare import prepared
from torchweld.templates.pointwise_reduce.price import cost
from torchweld.templates.template import Problem, Template, no_reference


def match(problem: Problem) -> Frame | None:
    return frame_of(problem.comp)


def supports_cpu(frame: Frame, problem: Problem) -> str | None:
    return None


def supports_gpu(frame: Frame, problem: Problem) -> str | None:
    return gpu.supports(problem.comp, problem.buffers)


def cpu_candidates(frame: Frame, problem: Problem) -> Iterator[cpu.CpuSchedule]:
    yield cpu.schedule(problem.comp, problem.buffers, problem.hints, problem.target.units)


def gpu_candidates(frame: Frame, problem: Problem) -> Iterator[gpu.Schedule]:
    yield from candidates(prepared(problem).accesses, problem.hints, problem.target.units)


def price(frame: Frame, schedule: object, problem: Problem) -> float:
    return cost(problem.comp, problem.buffers, problem.hints, problem.target).seconds


def generate_cpu(frame: Frame, schedule: cpu.CpuSchedule, problem: Problem) -> KernelBundle:
    return cpu_code.generate(problem.comp, problem.buffers, schedule, problem.hints)


def generate_gpu(frame: Frame, schedule: gpu.Schedule, problem: Problem) -> KernelBundle:
    early = problem.target.begins_early
    comp = prepared(problem).comp
    return gpu_code.generate(comp, problem.buffers, schedule, problem.hints, early)


CPU = Template("pointwise_reduce/cpu", match, supports_cpu, cpu_candidates, price, generate_cpu,
               no_reference)  # fmt: skip
GPU = Template("pointwise_reduce/gpu", match, supports_gpu, gpu_candidates, price, generate_gpu,
               no_reference)  # fmt: skip
