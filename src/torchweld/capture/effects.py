"""Checks of results, which torch orders by tokens (2.13: `torch.linalg.cholesky`, `inv`, `solve`).

    token, _ = with_effects(token, _linalg_check_errors, info)   ->   _linalg_check_errors(info)

Such a call only raises. Nothing depends on when it does, so that it stays one call among others,
and what is around it is one graph. Other operations with effects keep their tokens.
"""

from __future__ import annotations

from torch.export import ExportedProgram
from torch.fx import Graph, GraphModule, Node

from torchweld.capture import torch_private


def checks_as_calls(gm: GraphModule) -> None:
    """In place. A token that nothing is left to read is returned as None, as it was given."""
    passed_on = _unwrapped(gm.graph)
    if passed_on:
        output = gm.graph.output_node()
        output.args = (tuple(None if r in passed_on else r for r in output.args[0]),)


def without_tokens(program: ExportedProgram) -> None:
    """The same of an exported program, which loses such tokens."""
    graph, signature = program.graph_module.graph, program.graph_signature
    passed_on, output = _unwrapped(graph), graph.output_node()
    placeholders = graph.find_nodes(op="placeholder")
    results = [(r, s) for r, s in zip(output.args[0], signature.output_specs) if r not in passed_on]
    given = [s for n, s in zip(placeholders, signature.input_specs) if n not in passed_on]
    output.args = (tuple(r for r, _ in results),)
    signature.output_specs[:], signature.input_specs[:] = [s for _, s in results], given
    for token in passed_on:
        graph.erase_node(token)


def _unwrapped(graph: Graph) -> list[Node]:
    """Makes checks of `graph` calls like others; the tokens that it now only passes on."""
    tokens = []
    for node in graph.find_nodes(op="call_function", target=torch_private.with_effects):
        token, target, *args = node.args
        if target is torch_private.check_linalg:
            with graph.inserting_before(node):
                call = graph.call_function(target, tuple(args), dict(node.kwargs))
            call.meta = {**node.meta, "val": None}
            _pass_on(node, token)
            tokens.append(token)
    return [t for t in tokens if t.op == "placeholder" and list(t.users) == [graph.output_node()]]


def _pass_on(node: Node, token: Node) -> None:
    """What reads the token behind a call reads the one before it; the call returns nothing else."""
    for read in list(node.users):
        if read.args[1] == 0:
            read.replace_all_uses_with(token)
        read.graph.erase_node(read)
    node.graph.erase_node(node)
