"""The plan's decisions as they are in the end: what stages after the plan joined is fused, and no
longer refused.

Library calls that became kernels of our own take up what follows them. The call's node is gone
then, and its operations are among the origins of the kernel that took it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace

from torchweld.core.device import device_table
from torchweld.ir.nodes import Comp, Node
from torchweld.plan.cost import cost
from torchweld.plan.decisions import Fusion, RefusalRecord
from torchweld.plan.refusals import Reason


def decided(record) -> tuple[list[Fusion], list[RefusalRecord]]:
    """Fused kernels and pairs left apart, of the graph that runs."""
    nodes = {node.name: node for node in record.graph.nodes}
    refused = [d for d in record.decisions if isinstance(d, RefusalRecord)]
    fusions = {d.kernel: d for d in record.decisions if isinstance(d, Fusion)}
    taken: dict[str, list[RefusalRecord]] = defaultdict(list)
    apart = []
    for pair in refused:
        kernel = _kernel_of_both(pair, nodes)
        if kernel is None:
            apart.append(pair)
        else:
            taken[kernel].append(pair)
    for name, pairs in taken.items():
        fusions[name] = _joined(record, nodes[name], fusions.get(name), pairs)
    return list(fusions.values()), apart


def _kernel_of_both(pair: RefusalRecord, nodes: Mapping[str, Node]) -> str | None:
    """The kernel at one end, where the library call at the other is gone."""
    if pair.reason is not Reason.EXTERN:
        return None
    ends = [name for name in (pair.producer, pair.consumer) if name in nodes]
    return ends[0] if len(ends) == 1 and isinstance(nodes[ends[0]], Comp) else None


def _joined(record, node: Comp, known: Fusion | None, pairs: list[RefusalRecord]) -> Fusion:
    """What the pairs exchanged is neither written nor read any more."""
    table = device_table(record.device)
    after = cost(node, record.graph.buffers, record.graph.hints, table).bytes_moved
    vanished = 2 * sum(pair.bytes_at_stake for pair in pairs)
    saved = known.bytes_before - known.bytes_after if known else 0
    ends = {name for pair in pairs for name in (pair.producer, pair.consumer)}
    fusion = known or Fusion(node.name, (node.name,), node.origins, 0, 0, 1, 1, 0.0)
    return replace(
        fusion,
        members=(*fusion.members, *sorted(ends - {node.name})),
        origins=node.origins,
        bytes_before=after + saved + vanished,
        bytes_after=after,
        launches_before=fusion.launches_before + len(ends) - 1,
        saved_us=fusion.saved_us + vanished / table.dram_bytes_per_s * 1e6,
    )
