"""Attention of few queries in one pass over the keys (schedule.py has the form)."""

from __future__ import annotations

from collections.abc import Iterator

from torchweld.codegen.source import KernelBundle
from torchweld.templates.attention import generate as code
from torchweld.templates.attention.comp import attention_comp
from torchweld.templates.attention.schedule import (
    Attention,
    AttentionSchedule,
    attention_of,
    schedule,
)
from torchweld.templates.pointwise_reduce.price import cost
from torchweld.templates.template import Problem, Template


def match(problem: Problem) -> Attention | None:
    return attention_of(problem.comp)


def supports(attention: Attention, problem: Problem) -> str | None:
    return None


def candidates(attention: Attention, problem: Problem) -> Iterator[AttentionSchedule]:
    yield schedule(attention, problem.comp, problem.hints)


def price(attention: Attention, tiles: AttentionSchedule, problem: Problem) -> float:
    return cost(problem.comp, problem.buffers, problem.hints, problem.target).seconds


def generate(attention: Attention, tiles: AttentionSchedule, problem: Problem) -> KernelBundle:
    early = problem.target.begins_early
    return code.generate(problem.comp, problem.buffers, attention, tiles, early)


TEMPLATE = Template("attention", match, supports, candidates, price, generate, attention_comp)
