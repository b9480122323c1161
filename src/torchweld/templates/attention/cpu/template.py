"""Score nests in C++ on a CPU: attention of any score function, forward and backward."""

from __future__ import annotations

from collections.abc import Iterator

from torchweld.codegen.source import KernelBundle
from torchweld.templates.attention.cpu import generate as code
from torchweld.templates.attention.cpu.price import nest_s
from torchweld.templates.attention.cpu.schedule import (
    NestRoles,
    NestTiles,
    roles_of,
    tiles_of,
    unsupported,
)
from torchweld.templates.template import Problem, Template, no_reference


def match(problem: Problem) -> NestRoles | None:
    return roles_of(problem.comp, problem.buffers, problem.hints)


def supports(roles: NestRoles, problem: Problem) -> str | None:
    return unsupported(roles)


def candidates(roles: NestRoles, problem: Problem) -> Iterator[NestTiles]:
    yield tiles_of(roles, problem.target, problem.hints)


def price(roles: NestRoles, tiles: NestTiles, problem: Problem) -> float:
    return nest_s(roles, tiles, problem.buffers, problem.hints, problem.target)


def generate(roles: NestRoles, tiles: NestTiles, problem: Problem) -> KernelBundle:
    return code.generate(roles, tiles, problem.buffers)


TEMPLATE = Template(
    "attention/cpu", match, supports, candidates, price, generate, no_reference
)
