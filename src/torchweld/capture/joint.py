"""The joint forward and backward graph, cleaned before it is cut in two."""

from __future__ import annotations

import torch

from torchweld.capture import random, torch_private

aten = torch.ops.aten


def partition(joint: torch.fx.GraphModule, inputs, **kwargs):
    """(forward, backward) of a joint graph."""
    drop_detach(joint)
    random.gather_seeds(joint)
    random.recompute_masks(joint)
    return torch_private.min_cut_partition(joint, inputs, **kwargs)


def drop_detach(gm: torch.fx.GraphModule) -> None:
    """y = detach(x); f(y)  ->  f(x): in a functional graph they are the same, and x would be saved
    twice.

    What the graph returns is left: there a detach says that output and input share memory.
    """
    for target in (aten.detach.default, aten.alias.default):
        for node in gm.graph.find_nodes(op="call_function", target=target):
            if not any(user.op == "output" for user in node.users):
                node.replace_all_uses_with(node.args[0])
                gm.graph.erase_node(node)
