"""Findings that docs/reliability.md lists under "What is left", told apart from wrong results.

A program is at a limit only if a rule recognises everything that was found in it: whatever else is
wrong with it counts as before.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torchweld.capture.torch_private import fakes_of
from torchweld.exact.campaign.checks import PLANNED, Case, interpreted, place_of, trains
from torchweld.exact.campaign.moved import ERRORS, MISPLACED, errs_as_much, loses_as_many
from torchweld.exact.fuzz import NO_NUMBERS, strides_that_matter

# Those that put sums into another order. Others may not turn an infinity into NaN, or back.
REORDERING = ("scores", "products", "plan")
_AFTER_PASS = re.compile(
    rf"\w+, pass '(?:{'|'.join(REORDERING)})', result \d+: [^,]*{re.escape(NO_NUMBERS)}"
)
_AT_THE_END = re.compile(
    rf"(?P<name>.+): (?:NaN|infinity|negative infinity): .*{re.escape(NO_NUMBERS)}"
)
_STRIDES = re.compile(r"(?P<name>.+): strides \((?P<given>[\d, ]*)\) instead of \([\d, ]*\)")


@dataclass(frozen=True, slots=True)
class Limit:
    """`said`: the whole of a finding; `holds`: what else must be so, of the program, that match and
    the campaign's device."""

    name: str
    said: re.Pattern[str]
    holds: Callable[[Case, re.Match[str], str], bool]


def limits_of(case: Case, found: Sequence[str], device: str = "cpu") -> tuple[str, ...]:
    """Names of the limits behind `found`; none if anything in it is no limit."""
    names = [_limit_of(case, finding, device) for finding in found]
    return tuple(dict.fromkeys(names)) if all(names) else ()


def _limit_of(case: Case, finding: str, device: str) -> str:
    for limit in LIMITS:
        match = limit.said.fullmatch(finding.removeprefix(PLANNED))
        if match and limit.holds(case, match, device):
            return limit.name
    return ""


def _always(case: Case, match: re.Match[str], device: str) -> bool:
    return True


def _as_torch_predicts(case: Case, match: re.Match[str], device: str) -> bool:
    """Whether torch's own shape functions give the result these strides. The comparison of values
    came before that of strides."""
    try:
        shape, predicted = _predicted(case, match["name"], place_of(device))
    except Exception:  # what cannot be told without values excuses nothing
        return False
    given = [int(n) for n in match["given"].split(",") if n.strip()]
    near = strides_that_matter(shape, given) == strides_that_matter(shape, predicted)
    return len(given) == len(shape) and near


def _predicted(case: Case, name: str, place: str) -> tuple[list[int], list[int]]:
    """Shape and strides of a result of the program on fake tensors."""
    fakes = fakes_of([t.to(place) for t in case.make_inputs()], ())
    program, names = case.function(device=place), case.outputs  # samples are copied: not as fakes
    with fakes[0].fake_mode:
        fake = dict(zip(names, program(*fakes)))[name]
    return [int(n) for n in fake.shape], [int(n) for n in fake.stride()]


def _as_interpreted(case: Case, match: re.Match[str], device: str) -> bool:
    """Whether the interpreter names a pass that sums in another order, and nothing else."""
    found = interpreted(case, "H100" if device == "cuda" else device)
    named = [f for f in found if _AFTER_PASS.fullmatch(f)]
    return bool(named) and all(f in named or _AT_THE_END.fullmatch(f) for f in found)


def _by_rounding(holds: Callable) -> Callable[[Case, re.Match[str], str], bool]:
    """Whether roundings of eager's own operations do what was found."""
    return lambda case, match, device: holds(case, match, place_of(device), trains(case))


STRIDES = "strides as torch's shape functions predict them"
INFINITE = "sums of infinite values"
ROUNDING = "roundings of eager's own operations do as much"
LIMITS = (
    Limit(STRIDES, _STRIDES, _as_torch_predicts),
    Limit(INFINITE, _AFTER_PASS, _always),
    Limit(INFINITE, _AT_THE_END, _as_interpreted),
    Limit(ROUNDING, ERRORS, _by_rounding(errs_as_much)),
    Limit(ROUNDING, MISPLACED, _by_rounding(loses_as_many)),
)
