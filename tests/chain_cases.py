"""Comps that are chains (templates/chain/form.py), for tests of their template: links of any
widths, what is between them, and the gradients on the left of a step."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from product_cases import Body, gelu, silu
from torchweld.core import dtypes
from torchweld.ir.nodes import Value
from torchweld.targets.target import Target
from torchweld.templates.chain.form import chain_of
from torchweld.templates.chain.generate import generate
from torchweld.templates.chain.schedule import ChainSchedule, Work, candidates
from triton_cases import Case

WIDTHS = "cdefgh"  # axes of the widths; m: rows, b: batch


def layers(
    m, widths: Sequence[int], dtype="bf16", transposed=False, keep=False, sizes=None, act=gelu,
    batch: int | None = None, gap: int = 0,
) -> Case:  # fmt: skip
    """An MLP with biases, and an activation between two layers. `transposed`: weights as `F.linear`
    has them; `keep`: what the backward needs is stored; `batch`: as many of everything, no biases;
    `gap`: elements between the rows of the input."""
    extents = {} if batch is None else {"b": batch}
    body = _body(dtype, m, widths, extents)
    rows = "m" if batch is None else "bm"
    value = body.read("x", rows + "c", gap=gap)
    for n, (depth, columns) in enumerate(pairwise(WIDTHS[: len(widths)])):
        value = _link(body, value, f"w{n}", depth, columns, transposed, rows[:-1])
        if batch is None:
            value = body.op("add", value, body.read(f"bias{n}", columns))
        if n < len(widths) - 2:
            value = body.rounded(act(body, value))
            if keep:
                body.write(f"h{n}", rows + columns, value)
    body.write("y", rows + WIDTHS[len(widths) - 1], value)
    return body.case("layers", None, sizes)


def backward(m, widths: Sequence[int], dtype="bf16", sizes=None, transposed=True) -> Case:
    """Of layers with ReLU: from the last result's gradient to that of the input. The gradients
    between are stored, for who makes those of the weights. Widths are in the order of the walk:
    the last result's first."""
    body = _body(dtype, m, widths, {})
    value = body.read("dy", "mc")
    for n, (depth, columns) in enumerate(pairwise(WIDTHS[: len(widths)])):
        value = body.rounded(_link(body, value, f"w{n}", depth, columns, transposed, ""))
        if n < len(widths) - 2:
            zero = body.builder.const(0.0, dtypes.f32)
            off = body.builder.op("le", body.read(f"h{n}", "m" + columns), zero)
            value = body.rounded(body.builder.op("where", off, zero, value))
        body.write(f"d{n}", "m" + columns, value)
    return body.case("backward", None, sizes)


def gated(m, widths: Sequence[int], dtype="bf16", residual=True) -> Case:
    """down(silu(gate) * up), and a residual."""
    body = _body(dtype, m, widths, {})
    x = body.read("x", "mc")
    gate, up = (_link(body, x, w, "c", "d", False, "") for w in ("wg", "wu"))
    inner = body.rounded(body.op("mul", silu(body, gate), up))
    made = _link(body, inner, "wd", "d", "e", True, "")
    if residual:
        made = body.op("add", made, body.read("r", "me"))
    body.write("y", "me", made)
    return body.case("gated")


def made(case: Case, target: Target, schedule: ChainSchedule | None = None):
    """The bundle of a case; by default in the target's first tiles."""
    chain = chain_of(case.comp)
    if schedule is None:
        schedule = next(candidates(Work(case.comp, case.buffers, chain, target, case.sizes)))
    return generate(case.comp, case.buffers, chain, schedule, target.begins_early)


def _body(dtype: str, m, widths: Sequence[int], more: dict) -> Body:
    return Body(dtype, **more, m=m, **dict(zip(WIDTHS, widths)))


def _link(
    body: Body, left: Value, name: str, depth: str, columns: str, transposed: bool, batch: str
) -> Value:
    right = body.read(name, batch + (columns + depth if transposed else depth + columns))
    return body.builder.reduce("sum", (body.op("mul", left, right),), (depth,))
