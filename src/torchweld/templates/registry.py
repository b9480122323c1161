"""The templates by name, and the one that makes a kernel of a Comp."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from torchweld.codegen.source import KernelBundle
from torchweld.core.errors import InvalidIR
from torchweld.ir.nodes import Buffer, Comp
from torchweld.targets.target import Target
from torchweld.templates.attention import template as attention
from torchweld.templates.attention.cpu import sums as attention_cpu_sums
from torchweld.templates.attention.cpu import template as attention_cpu
from torchweld.templates.attention.gpu import sums as attention_gpu_sums
from torchweld.templates.attention.gpu import template as attention_gpu
from torchweld.templates.attention.hopper import template as attention_hopper
from torchweld.templates.chain import template as chain
from torchweld.templates.conv import template as conv
from torchweld.templates.gemm import template as gemm
from torchweld.templates.gemm.choice import choose
from torchweld.templates.gemm.dequantised import template as dequantised
from torchweld.templates.multi_tensor import template as multi_tensor
from torchweld.templates.pointwise_reduce import template as pointwise_reduce
from torchweld.templates.pooling import template as pooling
from torchweld.templates.runs import template as runs
from torchweld.templates.sorting import template as sorting
from torchweld.templates.template import NO_SCHEDULE, Choose, Kernel, Problem, Template
from torchweld.templates.weight_gradient import template as weight_gradient

TEMPLATES: dict[str, Template] = {
    t.name: t
    for t in (
        multi_tensor.TEMPLATE, chain.TEMPLATE, attention.TEMPLATE, attention_cpu.TEMPLATE,
        attention_cpu_sums.TEMPLATE, attention_hopper.TEMPLATE, attention_gpu.TEMPLATE,
        attention_gpu_sums.TEMPLATE, conv.TEMPLATE, weight_gradient.TEMPLATE, pooling.TEMPLATE,
        runs.TEMPLATE, sorting.TEMPLATE,
        gemm.SKINNY, gemm.HOPPER, gemm.TRITON, gemm.CPU, dequantised.TEMPLATE,
        pointwise_reduce.CPU, pointwise_reduce.GPU,
    )
}  # fmt: skip


def chosen(problem: Problem) -> Kernel:
    """The kernel of `problem`: of the first template of its target that matches and supports it.

    Raises InvalidIR, with the reasons, where none does.
    """
    refused: list[str] = []
    for name in problem.target.templates:
        made = tried(name, problem)
        if isinstance(made, Kernel):
            return replace(made, reason="; ".join(refused))
        refused += [f"not {name}: {made}"] if made else []
    raise InvalidIR(f"no template makes {problem.comp.name}: {'; '.join(refused) or 'no match'}")


def tried(name: str, problem: Problem) -> Kernel | str | None:
    """The kernel that one template makes of `problem`; why it cannot; None: another form."""
    template = TEMPLATES[name]
    roles = template.match(problem)
    if roles is None:
        return None
    why = template.supports(roles, problem)
    if why is not None:
        return why
    schedule = next(iter(template.candidates(roles, problem)), None)
    if schedule is None:
        return NO_SCHEDULE
    return Kernel(problem, name, roles, schedule, template.price(roles, schedule, problem), "")


def generate(kernel: Kernel) -> KernelBundle:
    """The sources of `kernel`, on canonical buffers."""
    made = TEMPLATES[kernel.template].generate
    return made(kernel.roles, kernel.schedule, kernel.problem)


def bundle_of(
    comp: Comp,
    buffers: Mapping[str, Buffer],
    target: Target,
    hints: Mapping[str, int] | None = None,
    choose: Choose = choose,
) -> KernelBundle:
    """The sources of one Comp alone. Raises InvalidIR where no template makes it."""
    return generate(chosen(Problem(comp, buffers, target, hints or {}, choose)))
