"""All problems, by name."""

from __future__ import annotations

from collections.abc import Sequence

from problem_set import (
    architectures,
    blocks,
    compositions,
    convolutions,
    modules,
    networks,
    objectives,
    operators,
    pretrained,
    products,
    recurrences,
    reductions,
)
from problem_set.core import PROBLEMS, Problem
from problem_set.files import add_files
from problem_set.second import basic, chains, fields
from problem_set.second import blocks as second_blocks

SECOND = (basic, chains, second_blocks, fields)  # a set that came later: names begin with u_
FILES = (
    reductions, products, convolutions, compositions, blocks, networks, architectures, recurrences,
    modules, objectives, operators, pretrained, *SECOND,
)  # fmt: skip


# Groups of many large models, and the second set.
ONLY_ASKED = ("timm_families", *{p.group for p in PROBLEMS.values() if p.name.startswith("u_")})
add_files()


def chosen(words: Sequence[str], train: bool) -> list[Problem]:
    """The problems with these names or of these groups, all but ONLY_ASKED for none, as far as
    their packages are installed and, to `train`, they have gradients. Errors: ValueError for
    another word."""
    groups = {problem.group for problem in PROBLEMS.values()}
    if unknown := [word for word in words if word not in PROBLEMS and word not in groups]:
        raise ValueError(f"there is no problem {unknown[0]}; groups: {', '.join(sorted(groups))}")
    words = words or groups.difference(ONLY_ASKED)
    asked = [p for p in PROBLEMS.values() if p.name in words or p.group in words]
    return [p for p in asked if p.available and (p.trains or not train)]
