"""Memory of a thread: where factors, scores, weights, sums and statistics of a tile are."""

from __future__ import annotations

from torchweld.codegen.cpp import expr as x
from torchweld.codegen.emitter import Emitter
from torchweld.templates.attention.cpu.code import Code, padded
from torchweld.templates.attention.cpu.scores import tiles_of_weights as weights

__all__ = ["declare", "total", "weights"]


def arrays(c: Code) -> dict[str, str]:
    """Elements of each array, as C++: multiples of 16."""
    nest, found = c.roles.nest, {}
    for n, inner in enumerate(nest.inners):
        (depth,) = inner.depth
        found[f"a{n}"] = f"ROWS * {c.k.extent(depth)}"
        found[f"b{n}"] = f"KEYS * {c.k.extent(depth)}"
    for n, outer in enumerate(nest.outers):
        found[f"d{n}"] = f"KEYS * {padded(c.roles.points(outer.columns))}"
        found[f"o{n}"] = f"ROWS * {padded(c.roles.points(outer.columns))}"
    found |= {f"s{n}": "PART * KEYS" for n in range(_score_tiles(c))}
    if nest.turns:
        found["total"] = "ROWS * KEYS"
    else:
        found |= {f"st{v}": "ROWS" for v in nest.statistics}
    shifts = {r for w in nest.walks for _, r in w.rescaled}
    found |= {f"by{r}": "PART" for r in sorted(shifts)}
    found["ones"] = "PART"
    found["lines"] = " + ".join(["KEYS", *(f"TW_WIDTH * {x.size_text(w)}" for w in _widths(c))])
    return found


def _widths(c: Code) -> list:
    axes = [i.depth for i in c.roles.nest.inners] + [o.columns for o in c.roles.nest.outers]
    return [c.roles.points(a) for a in dict.fromkeys(axes)]


def _score_tiles(c: Code) -> int:
    """Of products, and of weights beside them, in the walk that has most."""
    return max(
        max([len(w.inners), *(t + 1 for t in weights(w).values())]) for w in c.walks
    )


def total(c: Code) -> str:
    """Elements of all arrays."""
    return " + ".join(f"tw_whole({n}, 16)" for n in arrays(c).values())


def declare(c: Code, e: Emitter) -> None:
    """The arrays as pointers, and the widths of rows of sums."""
    for n, outer in enumerate(c.roles.nest.outers):
        e.line(f"const int64_t width{n} = {padded(c.roles.points(outer.columns))};")
    place = "scratch"
    for name, elements in arrays(c).items():
        e.line(f"float* const {name} = {place};")
        place = f"{name} + tw_whole({elements}, 16)"
    e.line("for (int64_t r = 0; r < PART; ++r) ones[r] = 1;")
