"""Cases that bring every two values together, of many that bring all together."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations, product


def pairs(*values: Iterable) -> list[tuple]:
    """Few tuples of one value of each list, in which each two values of different lists meet. A
    fault that shows with two values of any two lists is found as by their product."""
    lists, chosen = [list(x) for x in values], []
    left = [tuple(enumerate(case)) for case in product(*(range(len(x)) for x in lists))]
    missing = {pair for case in left for pair in combinations(case, 2)}
    while missing:
        best = max(left, key=lambda case: len(missing.intersection(combinations(case, 2))))
        missing.difference_update(combinations(best, 2))
        chosen.append(tuple(lists[place][at] for place, at in best))
    return chosen
