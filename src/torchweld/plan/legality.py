"""What may share a kernel, whatever it would gain: order, devices, writes in place, sizes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from torchweld.ir.access import sorts
from torchweld.ir.affine import Affine
from torchweld.ir.frame import frame_of
from torchweld.ir.in_place import is_in_place
from torchweld.ir.nodes import Buffer, Comp, IndexMap, Load, Reduce, Ref, Scan, Store
from torchweld.ir.size import product
from torchweld.plan.flow import Flow, NodeId
from torchweld.plan.refusals import Reason, Refusal
from torchweld.targets.target import Target
from torchweld.templates.pointwise_reduce.gpu.schedule import live_bytes
from torchweld.templates.sorting import template as sorting

# A compiler's time grows with the square of a kernel's length: gcc takes 0.75 s for a loop of 500
# operations, a third of them sines, and 7.1 s for one of 2000. Memory that lies between two kernels
# as long as this costs a hundredth of their arithmetic.
MOST_INSTRUCTIONS = 1500


def order_refusal(flow: Flow, first: NodeId, second: NodeId) -> Refusal | None:
    """Why `first` and `second` (which comes later) cannot run at the same time."""
    for number in (first, second):
        if not isinstance(flow.nodes[number], Comp):
            return Refusal(Reason.EXTERN, flow.nodes[number].name)
    through = flow.detour(first, second)
    return None if through is None else Refusal(Reason.REENTRY, flow.nodes[through].name)


def device_refusal(one: Comp, other: Comp, buffers: Mapping[str, Buffer]) -> Refusal | None:
    devices = {buffers[name].device for comp in (one, other) for name in comp.writes}
    return Refusal(Reason.DEVICES, ", ".join(sorted(devices))) if len(devices) > 1 else None


def length_refusal(one: Comp, other: Comp) -> Refusal | None:
    length = len(one.body) + len(other.body)
    if length <= MOST_INSTRUCTIONS:
        return None
    return Refusal(Reason.TOO_LONG, f"{length} instructions, at most {MOST_INSTRUCTIONS}")


def buffers_refusal(
    first: Comp, second: Comp, keep: frozenset[str], device: Target
) -> Refusal | None:
    """What `kernel_refusal` would say of both as one kernel that keeps `keep`, told without making
    it: what `second` touches beside the results of `first` stays, unless constants decide it."""
    if not first.reads:
        return None
    touched = len({*second.reads, *second.writes, *keep} - ({*first.writes} - keep))
    return too_many_buffers(touched, device)


def too_many_buffers(touched: int, device: Target) -> Refusal | None:
    """Why a kernel that touches as many is none."""
    if touched <= device.max_buffers:
        return None
    return Refusal(Reason.TOO_MANY_BUFFERS, f"{touched}, at most {device.max_buffers}")


def repeat_refusal(
    flow: Flow, producer: NodeId, consumers: Iterable[NodeId] = ()
) -> Refusal | None:
    """Why the work of `producer` cannot be repeated in `consumers`: what it reads has changed by
    then."""
    for name in flow.nodes[producer].reads:
        if any(flow.changes_between(name, producer, c) for c in consumers):
            return Refusal(Reason.MUTATION, name)
    return None


def kernel_refusal(comp: Comp, live: int, device: Target) -> Refusal | None:
    """Why a merged Comp is no good kernel: it reads what it writes, or is too large."""
    hazard = _hazard(comp)
    if hazard is not None:
        return Refusal(Reason.MUTATION, hazard)
    if device.kind == "cpu" and sorts(comp) and not sorting.is_alone(comp):
        return Refusal(Reason.SORT, comp.name)
    refusal = too_many_buffers(len({*comp.reads, *comp.writes}), device)
    if refusal is None and live > device.max_live:
        refusal = Refusal(Reason.SPILL, f"{live} live values, at most {device.max_live}")
    return refusal or _scatter_refusal(comp) or _row_sums_refusal(comp, live, device)


def _scatter_refusal(comp: Comp) -> Refusal | None:
    """Only pointwise work is done on the way to a scatter, and no other result with it."""
    scattered = [s.buffer for s in comp.stores if s.combine or _is_indirect(s.index)]
    alone = len(comp.stores) == 1 and not any(isinstance(i, (Reduce, Scan)) for i in comp.body)
    return Refusal(Reason.SCATTER, scattered[0]) if scattered and not alone else None


def _row_sums_refusal(comp: Comp, live: int, device: Target) -> Refusal | None:
    """On a GPU, sums over rows are kept in the registers of programs that hold whole rows. Of rows
    that do not fit there, memory is written and read for each row: a gradient of two softmaxes over
    16001 columns, with the sum over its rows, took an H200 1.1 ms where its bytes take 0.1."""
    frame = frame_of(comp)
    if not device.max_columns or frame is None or not frame.column_reductions:
        return None
    columns = product(comp.extent(n) for n in frame.columns)
    if not isinstance(columns, int) or columns > device.max_columns:
        return Refusal(Reason.ROW_SUMS, f"{columns} columns")
    if live_bytes(columns, live) > device.row_bytes:
        return Refusal(Reason.ROW_SUMS, f"{columns} columns of {live} live values")
    loads = [i for i in comp.body if isinstance(i, Load) and _is_indirect(i.index)]
    return Refusal(Reason.ROW_SUMS, f"{loads[0].buffer} is read indirectly") if loads else None


def _is_indirect(index: IndexMap) -> bool:
    return any(isinstance(entry, Ref) for entry in index)


def _hazard(comp: Comp) -> str | None:
    """A buffer that is read and written, but for in place, or has places that are written twice."""
    for store in comp.stores:
        read = store.buffer in comp.reads
        others = (s for s in comp.stores if s.buffer == store.buffer and s is not store)
        if any(not _are_apart(store, s) for s in others) or (
            read and not is_in_place(comp, store)
        ):
            return store.buffer
    return None


def _are_apart(one: Store, other: Store) -> bool:
    """Whether they are parts of a buffer: along some dimension they have different places."""
    if one.combine or other.combine:
        return False
    places = zip(one.index, other.index)
    return any(a != b and _is_number(a) and _is_number(b) for a, b in places)


def _is_number(place: Affine | Ref) -> bool:
    return isinstance(place, Affine) and not place.axes and isinstance(place.const, int)
