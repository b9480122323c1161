"""Convolutions as products over images, in Gluon: boxes of places, taps, edges, steps."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gluon_interpreted import interpret
from image_cases import convolution, normalised, phased
from product_cases import from_heads, parts
from product_check import problems
from torchweld.targets.find import named_target
from torchweld.templates.gemm.hopper.generate import generate
from torchweld.templates.gemm.hopper.images import best_box, boxes_of
from torchweld.templates.gemm.hopper.schedule import candidates, supports
from torchweld.templates.gemm.schedule import ProductSchedule
from triton_cases import Case, case, tensors, title

TABLE = named_target("H100")
ALONE = ProductSchedule("gluon", 64, 64, 64, 4, 3, programs=2, pingpong=True)
TOGETHER = ProductSchedule("gluon", 128, 64, 64, 8, 3, programs=2)
SHORT = replace(ALONE, block_k=32)

CASES = [
    (convolution(2, 64, (12, 10), 72, (3, 3), padding=1), ALONE),
    (convolution(2, 64, (12, 10), 72, (3, 3), padding=1, dtype="f16"), TOGETHER),
    (convolution(3, 40, (9, 7), 64, (3, 3)), ALONE),  # no padding, channels not in whole steps
    (convolution(1, 64, (13, 11), 64, (5, 3), padding=2), ALONE),
    (convolution(2, 64, (14, 12), 64, (3, 3), stride=2, padding=1), ALONE),
    (convolution(2, 64, (15, 9), 64, (3, 3), stride=3, padding=1), ALONE),
    (convolution(2, 72, (14, 12), 64, (1, 1), stride=2), ALONE),
    (convolution(2, 32, (12, 12), 64, (3, 3), padding=2, dilation=2), SHORT),
    (convolution(2, 128, (12, 12), 96, (3, 3), padding=1, groups=2), SHORT),
    (convolution(2, 128, (12, 10), 96, (3, 3), padding=1, groups=2), ALONE),
    # channels of several groups, and of every second pixel, in one dimension
    (convolution(2, 96, (12, 10), 96, (3, 3), stride=2, padding=1, groups=3), SHORT),
    (convolution(2, 72, (12, 10), 72, (3, 3), stride=2, padding=1, groups=3), SHORT),
    (convolution(1, 80, (12, 10), 96, (3, 3), stride=2, padding=1, groups=2), ALONE),
    (convolution(2, 64, (12, 10), 40, (3, 3), padding=1, behind=8), ALONE),
    (convolution(2, 32, (12, 8), 64, (3, 3), stride=2, padding=2, dilation=2, behind=32), SHORT),
    (convolution(3, 24, (70,), 40, (5,), padding=2), ALONE),
    (convolution(2, 64, (1, 70), 64, (1, 5), padding=(0, 2)), ALONE),  # one row
    (convolution(1, 64, (70,), 64, (4,), stride=2, padding=1), ALONE),
    (convolution(1, 32, (5, 6, 7), 64, (3, 3, 3), padding=1), SHORT),
    (convolution(1, 32, (4, 5, 6), 64, (3, 5, 7), padding=(1, 2, 3)), SHORT),
    (normalised(2, 64, (12, 10), 72, (3, 3), padding=1), ALONE),
    (normalised(2, 64, (11, 9), 64, (3, 3), padding=1), TOGETHER),
    (normalised(2, 64, (16, 16), 64, (3, 3), stride=2, padding=1), ALONE),
    (phased(2, 64, (6, 7), 32, 4), ALONE),
    (phased(2, 64, (6, 7), 48, 3, padding=0), TOGETHER),
    (phased(1, 64, (6, 5), 32, 4, groups=2), SHORT),
    (phased(1, 32, (3, 4, 5), 16, 3), SHORT),
    (phased(2, 64, (70,), 32, 4), ALONE),
    (from_heads(3, 50, 4, 64, 128), ALONE),  # a head is a tap
    (from_heads(3, 50, 4, 32, 128), SHORT),
]


def boxed(case: Case, schedule: ProductSchedule) -> ProductSchedule:
    accesses, contraction = parts(case)
    extents = [accesses.comp.extent(a) for a in contraction.rows]
    return replace(schedule, box=best_box(extents, schedule.block_m))


def laid_out(made: Case, **orders: tuple[int, ...]) -> Case:
    """The same with other layouts of some buffers: their dimensions, outermost first."""
    buffers = dict(made.buffers)
    for name, order in orders.items():
        shape, step = buffers[name].shape, 1
        strides = [0] * len(shape)
        for d in reversed(order):
            strides[d], step = step, step * shape[d]
        buffers[name] = replace(buffers[name], strides=tuple(strides))
    return replace(made, buffers=buffers)


def rows_read(load: str, guard: str = "", **buffers) -> Case:
    """y[n, h] += x[..] * w[i], over channels too, with the text of what x is read at and a guard
    (numbered from 0)."""
    first = guard.count("=")
    a, b, c, d, e, f, g = (f"%{first + k}" for k in range(7))
    return case("rows", "n:2, h:12, o:64, i:3, c:64", f"""{guard}
      {a} = load {load} : bf16
      {b} = cast {a} : f32
      {c} = load w[o, i, c] : bf16
      {d} = cast {c} : f32
      {e} = mul {b} {d} : f32
      {f} = reduce.sum[i, c] {e} : f32
      {g} = cast {f} : bf16
      store y[n, h, o] {g}""",
      x=buffers["x"], w=("bf16", 64, 3, 64), y=("bf16", 2, 12, 64))  # fmt: skip


def within(*bounds: tuple[str, int]) -> str:
    """The guard that each index is at least 0 and less than its bound, in lines from %0 on: its
    value is the last."""
    lines, guard = ["index 0 : i64"], None
    for index, bound in bounds:
        at = len(lines)
        lines += [f"index {index} : i64", f"ge %{at} %0 : b1", f"index {bound} : i64",
                  f"lt %{at} %{at + 2} : b1", f"bit_and %{at + 1} %{at + 3} : b1"]  # fmt: skip
        lines += [] if guard is None else [f"bit_and %{guard} %{at + 4} : b1"]
        guard = len(lines) - 1
    return "\n".join(f"%{n} = {line}" for n, line in enumerate(lines))


def behind(load: str, *bounds: tuple[str, int], x: tuple) -> Case:
    guard = within(*bounds)
    return rows_read(f"{load} if %{guard.count('=') - 1} else 0.0", guard, x=x)


HANKEL = case("hankel", "h:48, o:64, c:8", f"""{within(("c+h", 40))}
      %6 = load x[c+h] if %5 else 0.0 : bf16
      %7 = cast %6 : f32
      %8 = load w[o, c] : bf16
      %9 = cast %8 : f32
      %10 = mul %7 %9 : f32
      %11 = reduce.sum[c] %10 : f32
      %12 = cast %11 : bf16
      store y[h, o] %12""",
      x=("bf16", 64), w=("bf16", 64, 8), y=("bf16", 48, 64))  # fmt: skip
PADDED = convolution(2, 64, (12, 10), 64, (3, 3), padding=1)
OTHERS = [
    # the rows of one window come in another order in memory than those of another
    (laid_out(PADDED, y=(0, 3, 2, 1)), ALONE),
    (laid_out(PADDED, x=(0, 3, 2, 1)), TOGETHER),
    (laid_out(PADDED, x=(2, 3, 0, 1)), ALONE),
    (laid_out(normalised(2, 64, (12, 10), 64, (3, 3), padding=1), r=(0, 3, 2, 1)), TOGETHER),
    (laid_out(convolution(2, 64, (70,), 64, (3,), padding=1), x=(2, 0, 1)), ALONE),
    # one place within two bounds, of which the lower one counts
    (behind("x[n, h+i-1, c]", ("h+i-1", 8), ("h+i-1", 12), x=("bf16", 2, 12, 64)), ALONE),
    (behind("x[n, h+i-1, c]", ("h+i-1", 12), ("h+i-1", 8), x=("bf16", 2, 12, 64)), ALONE),
    # a bound beyond what there is, where nothing is read
    (behind("x[n, h+i-1, c]", ("h+i-1", 100), x=("bf16", 2, 13, 64)), ALONE),
]


@pytest.mark.parametrize(
    ("case", "schedule"), [*CASES, *OTHERS], ids=lambda v: title(v) if isinstance(v, Case) else ""
)
def test_results(case: Case, schedule: ProductSchedule):
    assert supports(*parts(case), TABLE) is None
    (source,) = generate(case.comp, case.buffers, boxed(case, schedule)).sources
    made = tensors(case)
    interpret(source, made, {})
    assert problems(case, made) == []


def test_guarded_results_change_their_layout_before_they_are_stored():
    """Neighbours in memory are then in one thread: accumulators hold two of them."""
    made = phased(2, 64, (6, 7), 32, 4)
    (source,) = generate(made.comp, made.buffers, boxed(made, ALONE)).sources
    (stored,) = (line for line in source.text.splitlines() if "tl.store(" in line)
    assert made.comp.stores[0].guard is not None and ", o" in stored
    assert "gl.convert_layout(v" in source.text.partition("def finish")[2]


@pytest.mark.parametrize(
    ("case", "why"),
    [
        (convolution(2, 12, (8, 8), 16, (3, 3), padding=1), "not aligned"),
        (convolution(2, 64, (15, 15), 64, (3, 3), stride=2, padding=1), "no step divides"),
        (convolution(2, 72, (12, 12), 64, (2, 2), stride=2, padding=1), "NO CANDIDATE"),
        (convolution(2, 64, (8, 8), 16, (3, 3), padding=1, behind=4), "not aligned"),
        (behind("x[n, c, 8*h+8*i-8]", ("h+i-1", 12), x=("bf16", 2, 64, 96)), "innermost"),
        (laid_out(convolution(2, 64, (9, 9), 64, (8, 1), padding=2), w=(0, 1, 3, 2)), "innermost"),
        (behind("x[n, 2*h-i+1, c]", ("2*h-i+1", 24), x=("bf16", 2, 24, 64)), "no step divides"),
        (behind("x[n, h+i-1, c]", ("h+i-1", 0), x=("bf16", 2, 12, 64)), "read nowhere"),
        (HANKEL, "innermost"),
        (behind("x[n, h+i, c]", ("h-c", 12), x=("bf16", 2, 14, 64)), "another place"),
    ],
    ids=lambda v: v.replace(" ", "-") if isinstance(v, str) else "",
)
def test_refused(case: Case, why: str):
    refusal = supports(*parts(case), TABLE)
    if why == "NO CANDIDATE":
        assert refusal is None and not list(candidates(*parts(case), TABLE))
    else:
        assert why in refusal


def beside(first: str, second: str) -> Case:
    """x1 @ w1 + x2 @ w2, of two texts of a left factor."""
    return case("beside", "n:2, h:12, o:64, c:64", f"""
      {within(("h-1", 12))}
      %6 = load {first} : bf16
      %7 = cast %6 : f32
      %8 = load w1[o, c] : bf16
      %9 = cast %8 : f32
      %10 = mul %7 %9 : f32
      %11 = reduce.sum[c] %10 : f32
      %12 = load {second} : bf16
      %13 = cast %12 : f32
      %14 = load w2[o, c] : bf16
      %15 = cast %14 : f32
      %16 = mul %13 %15 : f32
      %17 = reduce.sum[c] %16 : f32
      %18 = add %11 %17 : f32
      %19 = cast %18 : bf16
      store y[n, h, o] %19""",
      x=("bf16", 2, 12, 64), w1=("bf16", 64, 64), w2=("bf16", 64, 64),
      y=("bf16", 2, 12, 64))  # fmt: skip


@pytest.mark.parametrize("order", [1, -1])
def test_rows_beside_rows_that_are_shifted(order: int):
    """Either may be the first of two products."""
    both = ("x[n, h, c]", "x[n, h-1, c] if %5 else 0.0")[::order]
    made, two = beside(*both), replace(ALONE, stages=2)
    assert supports(*parts(made), TABLE) is None
    (source,) = generate(made.comp, made.buffers, boxed(made, two)).sources
    found = tensors(made)
    interpret(source, found, {})
    assert problems(made, found) == []


def test_boxes_cover_with_little_waste():
    assert best_box((64, 56, 56), 128) == (2, 8, 8)
    assert best_box((64, 62, 62), 128)[-1] >= 32  # not two places of each of 32 images
    assert boxes_of((64, 28, 28), best_box((64, 28, 28), 128)) == 64 * 28 * 28 // 128
    assert boxes_of((64, 7, 7), best_box((64, 7, 7), 128)) <= 1.31 * 64 * 49 / 128
