"""Products in a row as one kernel on a GPU, whose intermediates stay on chip (form.py)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from torchweld.codegen.source import KernelBundle
from torchweld.ir.nodes import Buffer, Comp
from torchweld.ir.size import product
from torchweld.targets.target import Target
from torchweld.templates.chain import generate as code
from torchweld.templates.chain import schedule as tiles
from torchweld.templates.chain.form import Chain, chain_of
from torchweld.templates.chain.price import seconds
from torchweld.templates.chain.schedule import ChainSchedule, Work
from torchweld.templates.template import Problem, Template, no_reference


def match(problem: Problem) -> Chain | None:
    return chain_of(problem.comp)


def may_begin(comp: Comp, buffers: Mapping[str, Buffer], target: Target) -> bool:
    """Whether the operands of a product that vary along the fewest elements, its weights, fit on
    chip: what a chain begins with."""
    loaded = [b for b in map(buffers.__getitem__, comp.reads) if len(b.shape) > 1]
    sizes = [product(b.shape) * b.dtype.bytes for b in loaded]
    return any(isinstance(n, int) and n <= target.shared_bytes for n in sizes)


def supports(chain: Chain, problem: Problem) -> str | None:
    return tiles.supports(work_of(chain, problem))


def candidates(chain: Chain, problem: Problem) -> Iterator[ChainSchedule]:
    yield from tiles.candidates(work_of(chain, problem))


def price(chain: Chain, schedule: ChainSchedule, problem: Problem) -> float:
    return seconds(work_of(chain, problem), schedule)


def generate(chain: Chain, schedule: ChainSchedule, problem: Problem) -> KernelBundle:
    early = problem.target.begins_early
    return code.generate(problem.comp, problem.buffers, chain, schedule, early)


def work_of(chain: Chain, problem: Problem) -> Work:
    return Work(problem.comp, problem.buffers, chain, problem.target, problem.hints)


TEMPLATE = Template("chain", match, supports, candidates, price, generate, no_reference)
