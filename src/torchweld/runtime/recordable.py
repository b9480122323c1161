"""Which programs may be recorded as CUDA graphs, and whether that is worth it."""

from __future__ import annotations

from collections.abc import Mapping

from torchweld.ir.nodes import Comp, Extern, View
from torchweld.ir.size import evaluate
from torchweld.runtime.loaded import Loaded
from torchweld.runtime.placement import buffer_bytes, tail_start
from torchweld.targets.find import target_of
from torchweld.targets.target import Target

_SAVED_S = 1.0e-6  # what a launch costs more outside a graph, when the GPU is the bottleneck
_LONG_S = 30 * _SAVED_S  # of a kernel for whose launch no recording is worth its memory

# Calls that wait for the GPU or choose sizes by data, which a recording cannot do.
_NOT_RECORDABLE = frozenset(
    f"aten.{name}"
    for name in (
        "_local_scalar_dense", "item", "nonzero", "masked_select", "unique_dim", "_unique2",
        "unique_consecutive", "bincount", "repeat_interleave", "multinomial", "equal",
        "_linalg_check_errors",
    )
).union(
    f"torchweld.{name}"
    for name in ("grouped_mm", "grouped_outer", "group_rows", "recurrent", "recurrent_backward")
)  # fmt: skip


def why_not_recorded(loaded: Loaded, kind: str, table: Target | None = None) -> str | None:
    """The reason against a CUDA graph, None where there is none. `kind`: inference, forward or
    backward; `table`: the GPU's, looked up if not given."""
    devices = {b.device for b in loaded.graph.buffers.values()}
    if loaded.graph.symbols and kind != "inference":
        return "its sizes vary"
    if len(devices) != 1 or not next(iter(devices)).startswith("cuda"):
        return "not all of it is on one GPU"
    for check in (_unrecordable_call, _interpreted, _moving_input_changed):
        reason = check(loaded)
        if reason is not None:
            return reason
    if loaded.graph.symbols:
        return None  # each set of sizes is judged when it comes
    table = table or target_of(next(iter(devices)))
    if kind == "forward":
        return _long_kernels(loaded, table)
    if kind == "backward":
        return None  # it is recorded if its forward was, whose results it reads
    return why_not_worth_it(loaded, loaded.graph.hints, table)


def _unrecordable_call(loaded: Loaded) -> str | None:
    for node in loaded.graph.nodes:
        if isinstance(node, Extern) and node.target.rpartition(".")[0] in _NOT_RECORDABLE:
            return f"{node.target} waits for the GPU"
    return None


def _interpreted(loaded: Loaded) -> str | None:
    """Interpreted kernels build small tensors on the host."""
    for node in loaded.graph.nodes:
        if isinstance(node, Comp) and not loaded.is_compiled(node):
            return f"{node.name} is not compiled"
    return None


def _moving_input_changed(loaded: Loaded) -> str | None:
    fixed = loaded.static_buffers
    written = {n for node in loaded.graph.nodes for n in node.writes}
    changed = [n for n in loaded.graph.inputs if n in written and n not in fixed]
    return f"it changes its input {changed[0]}" if changed else None


def _long_kernels(loaded: Loaded, table: Target) -> str | None:
    """A recorded step holds its saved activations, gradients and temporaries all at once. Where
    kernels touch that much memory, it would cost much and save little."""
    graph, launches = loaded.graph, _launches(loaded)
    touched = (graph.buffers[b] for n in graph.nodes for b in {*n.reads, *n.writes})
    each_s = sum(buffer_bytes(b, graph.hints) for b in touched) / table.dram_bytes_per_s
    if not launches or each_s / launches < _LONG_S:
        return None
    return f"its kernels take {each_s / launches:.1e} s each; a recording saves {_SAVED_S:.0e} s"


def why_not_worth_it(loaded: Loaded, sizes: Mapping[str, int], table: Target) -> str | None:
    """At these sizes, on the GPU of `table`."""
    graph = loaded.graph
    if not any(buffer_bytes(graph.buffers[b], sizes) for n in graph.nodes for b in n.writes):
        return "it has no results"
    return why_not_copied(loaded, _copied_bytes(loaded, sizes), table)


def why_not_copied(loaded: Loaded, copied_bytes: int, table: Target) -> str | None:
    """The reason against a recording that has to copy so much of its inputs and outputs."""
    copied_s = 2 * copied_bytes / table.dram_bytes_per_s
    saved_s = _launches(loaded) * _SAVED_S
    if copied_s < saved_s:
        return None
    return f"copying inputs and outputs takes {copied_s:.1e} s; a recording saves {saved_s:.1e} s"


def _copied_bytes(loaded: Loaded, sizes: Mapping[str, int]) -> int:
    buffers, kinds = loaded.graph.buffers, loaded.placement.kinds
    names = [n for n in loaded.graph.inputs if kinds.get(n) == "input"]
    moving = [buffers[n] for n in names if n not in loaded.static_buffers]
    made = recorded_buffers(loaded, sizes)
    results = [v for v in loaded.graph.outputs if isinstance(v, View) and v.buffer in made]
    return sum(view_bytes(b.shape, b.dtype, sizes) for b in moving) + sum(
        view_bytes(v.shape, buffers[v.buffer].dtype, sizes) for v in results
    )


def recorded_buffers(loaded: Loaded, sizes: Mapping[str, int]) -> frozenset[str]:
    """What the recording makes: all but inputs, constants and what the tail makes."""
    graph, kinds = loaded.graph, loaded.placement.kinds
    head = graph.nodes[: tail_start(graph, sizes)] if loaded.has_tail else graph.nodes
    made = {name for node in head for name in node.writes}
    return frozenset(n for n in made if kinds[n] not in ("input", "constant"))


def view_bytes(shape, dtype, sizes: Mapping[str, int]) -> int:
    count = dtype.bytes
    for extent in shape:
        count *= evaluate(extent, sizes)
    return count


def _launches(loaded: Loaded) -> int:
    bundles = loaded.bundles
    return sum(
        len(bundles[n.name].sources) if isinstance(n, Comp) else 1 for n in loaded.graph.nodes
    )
