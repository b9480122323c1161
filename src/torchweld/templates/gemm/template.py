"""Products of matrices with what is before and after them. On a GPU three templates share one
notion of roles and one choice among them (`choice.py`); on a CPU there is one."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from torchweld.codegen.source import KernelBundle
from torchweld.ir.access import addressed
from torchweld.ir.contraction import Contraction
from torchweld.ir.expand import expanded
from torchweld.templates.gemm import price as prices
from torchweld.templates.gemm.comp import product_comp
from torchweld.templates.gemm.cpu import generate as cpu_code
from torchweld.templates.gemm.cpu.price import product_s
from torchweld.templates.gemm.cpu.schedule import CpuProduct, cpu_product
from torchweld.templates.gemm.hopper import generate as hopper
from torchweld.templates.gemm.schedule import ProductSchedule
from torchweld.templates.gemm.skinny import generate as skinny
from torchweld.templates.gemm.triton import generate as triton
from torchweld.templates.template import Problem, Template


def match_gpu(problem: Problem) -> Contraction | None:
    return problem.contraction


def supports_gpu(forms: tuple[str, ...]) -> Callable[[Contraction, Problem], str | None]:
    """Whether the choice among the forms of a GPU's kernels falls on one of `forms`."""

    def supports(contraction: Contraction, problem: Problem) -> str | None:
        chosen = problem.tiling
        if isinstance(chosen, str):
            return chosen
        return None if chosen.form in forms else f"{chosen.form} is faster at these sizes"

    return supports


def gpu_candidates(contraction: Contraction, problem: Problem) -> Iterator[ProductSchedule]:
    if isinstance(problem.tiling, ProductSchedule):
        yield problem.tiling


def price_gpu(contraction: Contraction, schedule: ProductSchedule, problem: Problem) -> float:
    return prices.fused_s(problem.accesses, contraction, schedule, problem.buffers,
                          problem.hints, problem.target)  # fmt: skip


def generate_with(code) -> Callable[[Contraction, ProductSchedule, Problem], KernelBundle]:
    def generate(contraction: Contraction, schedule: ProductSchedule, problem: Problem):
        return code(schedule).generate(problem.comp, problem.buffers, schedule, problem.hints)

    return generate


def match_cpu(problem: Problem) -> CpuProduct | None:
    accesses = addressed(expanded(problem.comp), problem.buffers, problem.hints)
    return cpu_product(accesses, problem.hints)


def supports_cpu(product: CpuProduct, problem: Problem) -> str | None:
    return None


def cpu_candidates(product: CpuProduct, problem: Problem) -> Iterator[CpuProduct]:
    yield product


def price_cpu(product: CpuProduct, schedule: CpuProduct, problem: Problem) -> float:
    comp = addressed(expanded(problem.comp), problem.buffers, problem.hints).comp
    return product_s(product, comp, problem.buffers, problem.hints, problem.target)


def generate_cpu(product: CpuProduct, schedule: CpuProduct, problem: Problem) -> KernelBundle:
    return cpu_code.generate(problem.comp, product, problem.buffers, problem.hints)


def _gpu(name: str, forms: tuple[str, ...], code) -> Template:
    return Template(name, match_gpu, supports_gpu(forms), gpu_candidates, price_gpu,
                    generate_with(code), product_comp)  # fmt: skip


SKINNY = _gpu("gemm/skinny", ("gluon stream", "stream"),
              lambda s: skinny if s.form == "gluon stream" else triton)  # fmt: skip
HOPPER = _gpu("gemm/hopper", ("gluon",), lambda s: hopper)
TRITON = _gpu("gemm/triton", ("triton",), lambda s: triton)
CPU = Template("gemm/cpu", match_cpu, supports_cpu, cpu_candidates, price_cpu, generate_cpu,
               product_comp)  # fmt: skip
