"""What rounding alone does to a program: eager again, where a quarter of what each operation gives
is moved to the next number, up or down, at random. The functions of torch are no nearer to exact. A
fused result that errs no more than such runs do is no sign of a mistake: eager was lucky.

    sum of 64 losses: 423.279357 in eager, by chance exact to 1e-6; the next float32: 423.279388
    its cosine, the gradient's factor: 1e-6 and 3e-5 from exact
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from torchweld.core.torch_private import pytree
from torchweld.exact.budget import CLASSES, measure
from torchweld.exact.fuzz import exact_results_of, results_of
from torchweld.exact.torch_private import DispatchMode

DRAWS = 32
_OFTEN = 0.25
_BITS = {2: torch.int16, 4: torch.int32}
_ERROR = r"{} error (?P<{}>\S+) above \S+"
ERRORS = re.compile(
    rf"(?P<name>.+?): (?:{_ERROR.format('relative L2', 'l2')})?(?:; )?"
    rf"(?:{_ERROR.format('largest', 'largest')})?"
)
MISPLACED = re.compile(
    r"(?P<name>.+): (?P<what>NaN|infinity|negative infinity): (?P<count>\d+) elements, "
    r"first at \((?P<first>[\d, ]*)\): fused \S+, eager \S+"
)


class _Moved(DispatchMode):
    """Numbers that an operation was given, and puts elsewhere, stay as they are."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._generator = torch.Generator().manual_seed(seed)

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        found = function(*args, **(kwargs or {}))
        if any(r.alias_info for r in function._schema.returns):  # views, and writes
            return found
        leaves = pytree.tree_leaves((args, kwargs))
        given = [torch.as_tensor(v) for v in leaves if isinstance(v, Tensor | float | int)]
        return pytree.tree_map(lambda t: self._moved(t, given), found)

    def _moved(self, made, given: Sequence[Tensor]):
        if not isinstance(made, Tensor) or not made.is_floating_point():
            return made
        if made.element_size() not in _BITS or not made.numel():
            return made
        held = made.isnan() | made.isinf() | (made == 0) | (made.abs() == 1)  # functions saturate
        for tensor in given:
            numbers = tensor.float().to(made.device).flatten()  # isin has views of its arguments
            held |= torch.isin(made.float().contiguous(), numbers)
        drawn = torch.rand(made.shape, generator=self._generator).to(made.device)
        steps = (drawn < _OFTEN / 2).int() - (drawn > 1 - _OFTEN / 2).int()
        found, bits = made.clone(), _BITS[made.element_size()]
        found.view(bits).add_(steps.masked_fill(held, 0).to(bits))
        return found


def errs_as_much(case, match: re.Match[str], place: str, train: bool) -> bool:
    """Whether eager with moved results is as far from float64 as `match` of ERRORS says."""
    left = {k: float(match[k]) for k in ("l2", "largest") if match[k]}
    runs = _runs(case, match["name"], place, train) if left else iter(())
    for eager, exact, moved in runs:
        error = measure(match["name"], moved, eager, exact)
        most = {"l2": error.fused_l2, "largest": error.fused_max}
        left = {k: said for k, said in left.items() if not said <= most[k]}
        if not left:
            return True
    return False


def loses_as_many(case, match: re.Match[str], place: str, train: bool) -> bool:
    """Whether eager with moved results has NaN (infinities) in as many places, that which `match`
    of MISPLACED names among them."""
    test = dict(CLASSES)[match["what"]]
    first = tuple(int(n) for n in match["first"].split(",") if n.strip())
    places = torch.tensor(False)
    for eager, exact, moved in _runs(case, match["name"], place, train):
        places = places | (test(moved) & ~test(eager) & ~test(exact.to(eager.dtype))).cpu()
        if int(places.sum()) >= int(match["count"]) and bool(places[first]):
            return True
    return False


def _runs(case, name: str, place: str, train: bool) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """The result `name` (in eager, in float64, with moved results), for each draw."""
    inputs = [t.to(place) for t in case.make_inputs()]
    program = case.function(device=place)
    eager = results_of(case, program, inputs, train)
    exact = exact_results_of(case, inputs, train, place)
    for seed in range(DRAWS if name in eager else 0):
        with _Moved(seed):
            moved = results_of(case, program, inputs, train)[name]
        yield eager[name], exact[name], moved
