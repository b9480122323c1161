"""Products with a dequantised weight on a CPU."""

from __future__ import annotations

from collections.abc import Iterator

from torchweld.codegen.source import KernelBundle
from torchweld.ir.access import Accesses, addressed
from torchweld.ir.expand import expanded
from torchweld.templates.gemm.dequantised import generate as code
from torchweld.templates.gemm.dequantised.price import dequantised_s
from torchweld.templates.gemm.dequantised.schedule import Dequantised, dequantised, refusal
from torchweld.templates.template import Problem, Template, no_reference


def match(problem: Problem) -> Dequantised | None:
    return dequantised(_accesses(problem), "avx512" in problem.target.features)


def supports(roles: Dequantised, problem: Problem) -> str | None:
    return refusal(_accesses(problem), roles)


def candidates(roles: Dequantised, problem: Problem) -> Iterator[Dequantised]:
    yield roles


def price(roles: Dequantised, schedule: Dequantised, problem: Problem) -> float:
    return dequantised_s(schedule, _accesses(problem), problem.buffers, problem.target)


def generate(roles: Dequantised, schedule: Dequantised, problem: Problem) -> KernelBundle:
    return code.generate(problem.comp, schedule, problem.buffers)


def _accesses(problem: Problem) -> Accesses:
    return addressed(expanded(problem.comp), problem.buffers, problem.hints)


TEMPLATE = Template("gemm/dequantised", match, supports, candidates, price, generate, no_reference)
