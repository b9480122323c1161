"""What a kernel that reduces reads along its rows and columns, and what registers have room for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from torchweld.ir import size
from torchweld.ir.access import Access, Accesses
from torchweld.ir.nodes import (
    Reduce,
    Scan,
    depends_on_loads,
    store_axes,
    store_operands,
    value_axes,
)
from torchweld.ir.passes import stages
from torchweld.ir.size import Size, divide, product
from torchweld.templates.pointwise_reduce.gpu.lanes import TUPLES
from torchweld.templates.pointwise_reduce.gpu.schedule import (
    MAX_POINTS_PER_THREAD,
    PERSISTENT_COLUMNS,
)

# Of rows that are contiguous in memory: so many columns are reduced by one warp, whose threads have
# 16 bytes along the rows, and sums of their own. Several warps would meet in shared memory. Where
# there are more reductions than a softmax has, two warps have registers for them; a thread has one
# row where those do not begin at multiples of 16 bytes. A loss over 19 classes, 12 images, us on an
# H200, with one warp and so: 512 x 512 pixels, bfloat16 784 and 114, float32 368 and 84; 321 x 321,
# bfloat16 150 and 28. The softmax of 512 x 512 pixels would take 74 for 61 in bfloat16.
WARP_COLUMNS, FEW_REDUCTIONS = 32, 2
# Elements of tiles for each thread, where there are more than a few tiles. Windows of 5 x 5 with
# twice as many took 1.05 to 1.3 times as long on an H100, windows of 3 x 3 with half of them 0.9 to
# 1.2 times.
_FEW_TILES, MOST_WAITING = 12, 176
# Running results of a thread: the sums for a window of 7 x 7, of one point each.
_MOST_RUNNING, _FEW_SUMS = 64, 8
# How often the threads of a row meet for one reduction; and the values, 16-bit ones among them,
# that a thread holds for all its points. With 16 points for each thread, layer norms of 40 million
# elements in rows of 2560, 5120 and 8192 take 70, 87 and 66 us on an H200, with 64 points 51, 54
# and 54; softmaxes of 20 million in rows of 2560 and 6144 take 30 and 28, with 32 points 26 and 26.
# Rows of float32 gain nothing.
ROUNDS = {"welford": 3, "logsumexp": 2}
HELD_VALUES, MANY_ALIVE = 256, 8


def most_points(accesses: Accesses, hints: Mapping[str, int]) -> int:
    """Of a thread, which loads an element of each tile for every one of them."""
    points = size.hint(product(a.extent for a in accesses.comp.axes), hints)
    tiles = sum(8 * accesses.touched(a, hints) >= points * a.bytes for a in accesses.all)
    most = max(1, MOST_WAITING // tiles) if tiles > _FEW_TILES else MAX_POINTS_PER_THREAD
    return min(most, most_of_sums(accesses))


def most_of_sums(accesses: Accesses) -> int:
    """Points of a thread of a loop whose many running results lie in registers: of reductions that
    wait for no other of them."""
    body = accesses.comp.body
    together = Counter(n for n, i in zip(stages(body), body) if isinstance(i, Reduce))
    running = max(together.values(), default=0)
    return max(1, _MOST_RUNNING // running) if running > _FEW_SUMS else MAX_POINTS_PER_THREAD


def traffic(accesses: Accesses, hints: Mapping[str, int]) -> tuple[int, int]:
    """Bytes moved along the columns, of the axis that has most, and along the last of the rows'."""
    along = max(_near_traffic(accesses, c, hints) for c in accesses.frame.columns)
    return along, _near_traffic(accesses, accesses.frame.rows[-1], hints)


def _near_traffic(accesses: Accesses, axis: str, hints: Mapping[str, int]) -> int:
    """Bytes that are moved by accesses whose neighbours in memory are along `axis`."""
    near = (a for a in accesses.all if axis in nearest_axes(accesses, a, hints))
    return sum(accesses.touched(a, hints) for a in near)


def nearest_axes(accesses: Accesses, access: Access, hints: Mapping[str, int]) -> list[str]:
    """Axes along which the next element is nearest. An index that is computed of axes alone
    (windows of a pooling) is taken to be one more at the next point, or near that."""
    terms = [*access.offset.terms]
    for value, step in access.refs:
        if not depends_on_loads(accesses.comp)[value]:
            terms += [(axis, step) for axis in value_axes(accesses.comp.body)[value]]
    steps: dict[str, int] = {}
    for axis, step in terms:
        far = abs(size.hint(step, hints))
        steps[axis] = min(far, steps.get(axis, far))
    return [axis for axis, step in steps.items() if step == min(steps.values())]


def reading(accesses: Accesses) -> str:
    """How columns of a row are read: `once`, for one result of each reduction or for `several`;
    `again`; or `often`, which is for registers alone."""
    if max(stages(accesses.comp.body)) > 2:
        return "often"
    several = any(isinstance(i, Reduce) and i.monoid in TUPLES for i in accesses.comp.body)
    return "again" if reads_again(accesses) else "several" if several else "once"


def most_held(accesses: Accesses) -> int:
    """Columns that a program may hold at once, and have running results of them in registers."""
    few = most_of_sums(accesses)
    return 32 * 8 * few if few < MAX_POINTS_PER_THREAD else PERSISTENT_COLUMNS


def reads_again(accesses: Accesses) -> bool:
    """Whether something along the columns waits for a reduction, so that there is another pass."""
    comp, columns, stage = accesses.comp, accesses.frame.columns, stages(accesses.comp.body)
    axes = value_axes(comp.body)
    across = [s for s in comp.stores if store_axes(comp, s, axes).intersection(columns)]
    waiting = any(stage[v] for s in across for v in store_operands(s))
    return waiting or max(stage) > 1


def are_rows_aligned(accesses: Accesses) -> bool:
    """Whether all rows begin at multiples of 16 bytes; loops have a way to read others."""
    along, rows = accesses.frame.columns[-1], accesses.frame.rows
    beside = (a for a in accesses.all if a.offset.coefficient(along) == 1)
    steps = (a.offset.coefficient(r) * a.bytes for a in beside for r in rows)
    return all(divide(step, 16) is not None for step in steps)


def whole_loads(accesses: Accesses) -> list[Access]:
    """Of what has all rows and columns."""
    points = {a.name for a in accesses.comp.axes}
    return [a for a in accesses.loads.values() if points <= a.offset.axes]


def bytes_per_column(accesses: Accesses) -> int:
    """Bytes that are read of each row for each of its columns, and of no other."""
    return sum(a.bytes for a in whole_loads(accesses))


def in_wide_loads(accesses: Accesses) -> bool:
    """Whether what lies along the rows begins at multiples of 16 bytes. Number by number, a thread
    has four loads under way, as ptxas compiles it (32 registers): twice as many threads are
    wanted."""
    return all(divide(start * size, 16) is not None for start, size in row_starts(accesses))


def row_starts(accesses: Accesses) -> Iterator[tuple[Size, int]]:
    """What lies along the rows begins at multiples of these numbers of elements, of so many
    bytes."""
    inner = accesses.frame.rows[-1:]
    for access in accesses.loads.values():
        if access.offset.coefficient(*inner) == 1:
            for axis in access.offset.axes.difference(inner):
                yield access.offset.coefficient(axis), access.bytes


def has_scans(accesses: Accesses) -> bool:
    return any(isinstance(i, Scan) for i in accesses.comp.body)


def widest_element(accesses: Accesses) -> int:
    """Bytes of an element of what is read along rows and columns."""
    return max((a.bytes for a in whole_loads(accesses)), default=4)


def in_words(accesses: Accesses) -> bool:
    """Whether what is read along the columns has 4 bytes and more: such loads may run ahead."""
    columns = set(accesses.frame.columns)
    return all(a.bytes >= 4 for a in accesses.loads.values() if a.offset.axes & columns)
