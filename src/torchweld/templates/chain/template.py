"""Products in a row as one kernel on a GPU, whose intermediates stay on chip (form.py)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import inf

from torchweld.codegen.source import KernelBundle
from torchweld.ir.nodes import Buffer, Comp, Load, Value, needed
from torchweld.ir.size import product
from torchweld.targets.target import Target
from torchweld.templates.chain import generate as code
from torchweld.templates.chain import schedule as tiles
from torchweld.templates.chain.form import Chain, chain_of, products_of
from torchweld.templates.chain.price import seconds
from torchweld.templates.chain.schedule import ChainSchedule, Work
from torchweld.templates.template import Problem, Template, no_reference


def match(problem: Problem) -> Chain | None:
    return chain_of(problem.comp)


def may_begin(comp: Comp, buffers: Mapping[str, Buffer], target: Target) -> bool:
    """Whether a chain may begin with `comp`: it makes a product of two factors of which one fits on
    chip."""
    held = (min(_bytes(comp, v, buffers) for v in pair) for pair in products_of(comp))
    return any(n <= target.shared_bytes for n in held)


def _bytes(comp: Comp, value: Value, buffers: Mapping[str, Buffer]) -> float:
    """Of the largest buffer that a value is made from; infinite where that is known only at the
    call."""
    read = (comp.body[v] for v in needed(comp.body, [value]))
    loaded = [buffers[i.buffer] for i in read if isinstance(i, Load)]
    sizes = [product(b.shape) * b.dtype.bytes for b in loaded]
    known = [float(n) for n in sizes if isinstance(n, int)]
    return max(known, default=0.0) if len(known) == len(sizes) else inf


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
