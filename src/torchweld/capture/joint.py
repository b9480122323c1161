"""The joint forward and backward graph, cleaned before it is cut in two."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from torchweld.capture import (
    ahead,
    alike,
    functional,
    losses,
    pool_gradients,
    random,
    scores,
    torch_private,
)
from torchweld.capture.calls import filled
from torchweld.core import events

aten = torch.ops.aten
_SHARES = (1.0, 0.75, 0.5, 0.25, 0.0)  # of a budget in bytes, that are tried in turn
_MADE = {aten.arange.default, aten.arange.start, aten.arange.start_step, aten.full.default}
_LIKE = {
    aten.ones_like.default: 1, aten.new_ones.default: 1, aten.zeros_like.default: 0,
    aten.new_zeros.default: 0,
}  # fmt: skip
_LIKE_ARGUMENT = {aten.full_like.default: 1, aten.new_full.default: 2}  # which is the number
_BATCH_NORM = aten._native_batch_norm_legit_functional.default


def partition(
    joint: torch.fx.GraphModule,
    inputs,
    takes: scores.Takes | None = None,
    budget: float = 1.0,
    **kwargs,
):
    """(forward, backward) of a joint graph. `takes`: which scores of attention are computed again
    in the backward. `budget`: of what the forward keeps for it (Options.memory_budget)."""
    drop_detach(joint)
    functional.rewrite(joint)
    pool_gradients.gather_gradients(joint)
    widen_statistics(joint)
    drop_running_statistics(joint)
    random.gather_seeds(joint)
    random.recompute_masks(joint)
    losses.add_up_hits(joint)
    losses.picked_by_comparison(joint)
    losses.recompute_log_probabilities(joint)
    scores.recompute_scores(joint, takes)
    recompute_extremes(joint)
    recompute_made(joint)
    hold_written(joint)
    _hide_attention(joint)
    parts = _cut(joint, inputs, budget, **kwargs)
    scores.divide_once(parts[1])
    alike.round_alike(*parts)
    for part in parts:
        _show_attention(part)
    return parts


def _cut(joint: torch.fx.GraphModule, inputs, budget: float, *, num_fwd_outputs: int, **kwargs):
    """The forward gives the gradients that it makes ahead like its results to the partitioner,
    which then never makes them in the backward; to the backward alone in the end."""
    made = ahead.take_ahead(joint, num_fwd_outputs)
    outputs, end = joint.graph.output_node(), num_fwd_outputs
    _insert_outputs(outputs, end, made)
    count = end + len(made)
    parts = _within(budget, joint, inputs, num_fwd_outputs=count, **kwargs)
    _insert_outputs(parts[0].graph.output_node(), end, (), count)
    parts[0].recompile()
    return parts


def _within(budget: float, joint: torch.fx.GraphModule, inputs, *, num_fwd_outputs: int, **kwargs):
    """The two parts, with no more kept between them than `budget` says, as far as that goes: seeds,
    statistics of attention and what was written over since are kept in any case."""

    def cut(share: float):
        return torch_private.min_cut_partition(
            joint, inputs, share, num_fwd_outputs=num_fwd_outputs, **kwargs
        )

    if budget <= 1:
        return cut(float(budget))
    parts = cut(1.0)
    first = kept = torch_private.bytes_kept(parts[0], num_fwd_outputs)
    for step in _SHARES:  # the partitioner counts in another way, and keeps more at times
        if kept <= budget:
            return parts
        parts = cut(step * budget / first)
        kept = torch_private.bytes_kept(parts[0], num_fwd_outputs)
    if kept > budget:
        message = f"a forward keeps {kept} bytes for its backward, more than memory_budget={budget}"
        events.record(f"memory_budget:{kept}", message)
    return parts


def _insert_outputs(output: torch.fx.Node, start: int, nodes, end: int | None = None) -> None:
    """`nodes` in the place of outputs `start` to `end`."""
    values, end = list(output.args[0]), start if end is None else end
    values[start:end] = nodes
    output.args = (tuple(values),)
    described = list(output.meta.get("desc", ()))
    if described:
        described[start:end] = [None] * len(nodes)
        output.meta["desc"] = described


def drop_running_statistics(joint: torch.fx.GraphModule) -> None:
    """The gradient of a batch norm in training is given them and does not use them: the forward
    would keep what it writes to its buffers."""
    target = aten.native_batch_norm_backward.default
    for node in joint.graph.find_nodes(op="call_function", target=target):
        if node.args[7]:
            node.args = (*node.args[:3], None, None, *node.args[5:])


def hold_written(joint: torch.fx.GraphModule) -> None:
    """f(x); ...; copy_(x, y)  ->  held = clone(x); f(held); ...; copy_(x, y)

    For an input x that the forward writes to, where the backward depends on what it was. The
    partitioner takes an input to be the same in the backward, where nothing has to be kept to
    compute from it again: a counter `n += 1; x * n` would be counted twice (torch 2.13). What is
    held is kept like any other value. Others stay as they are: statistics of a batch norm.
    """
    written = [
        copy.args[0]
        for copy in joint.graph.find_nodes(op="call_function", target=aten.copy_.default)
        if getattr(copy.args[0], "op", "") == "placeholder"
    ]
    backward = _reached(n for n in joint.graph.find_nodes(op="placeholder") if _is_tangent(n))
    backward.discard(joint.graph.output_node())
    for x in dict.fromkeys(written):
        made = _reached([x]) - backward
        if any(user in backward for node in made for user in _readers(node)):
            _hold(joint.graph, x)


def _reached(starts) -> set[torch.fx.Node]:
    """What is computed from `starts`, and they themselves."""
    found, front = set(), list(starts)
    while front:
        node = front.pop()
        if node not in found:
            found.add(node)
            front.extend(_readers(node))
    return found


def _readers(node: torch.fx.Node) -> Iterator[torch.fx.Node]:
    """Those that compute from `node`. Of a batch norm in training, running statistics give the next
    ones alone, results 3 and 4."""
    for user in node.users:
        if user.target is _BATCH_NORM and user.args[5] and node not in user.args[:3]:
            yield from (result for result in user.users if result.args[1] > 2)
        else:
            yield user


def _is_tangent(node: torch.fx.Node) -> bool:
    return "tangents" in str(node.target)


def _hold(graph: torch.fx.Graph, x: torch.fx.Node) -> None:
    last = [node for node in graph.nodes if node.op == "placeholder"][-1]
    with graph.inserting_after(last):
        held = graph.call_function(aten.clone.default, (x,))
    held.meta["val"] = torch.empty_like(x.meta["val"].detach())
    held.meta["recompute"] = scores.MUST_SAVE
    for user in list(x.users):
        is_write = user.target is aten.copy_.default and user.args[0] is x
        if user is not held and user.op != "output" and not is_write:
            user.replace_input_with(x, held)


class _Drawless:
    """An operation that draws no random numbers, though its tag says so: what the partitioner
    recomputes of those, it wraps in others that save and restore the generator's state."""

    def __init__(self, operation: torch_private.OpOverload) -> None:
        self.operation, self.__name__ = operation, "drawless"

    def __call__(self, *args, **kwargs):
        return self.operation(*args, **kwargs)


def _hide_attention(joint: torch.fx.GraphModule) -> None:
    """Attention without dropout that the user wants recomputed, by another name."""
    for node in joint.graph.nodes:
        is_operation = isinstance(node.target, torch_private.OpOverload)
        if is_operation and "recompute" in node.meta and _dropout(node) == 0:
            node.target = _Drawless(node.target)


def _show_attention(part: torch.fx.GraphModule) -> None:
    for node in part.graph.nodes:
        if isinstance(node.target, _Drawless):
            node.target = node.target.operation
    part.recompile()


def _dropout(node: torch.fx.Node) -> float | None:
    """The probability of dropout that an operation is told; None if it has no such argument."""
    for position, argument in enumerate(node.target._schema.arguments):
        if argument.name == "dropout_p":
            given = node.args[position : position + 1]
            return node.kwargs.get("dropout_p", given[0] if given else argument.default_value)
    return None


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


_EXTREMES = (aten.amax.default, aten.amin.default, aten.max.default, aten.min.default)


def recompute_extremes(joint: torch.fx.GraphModule) -> None:
    """The gradient of a maximum goes to the elements that equal it, divided by their number. Where
    the backward computes the elements again, by another kernel that rounds in another way, none
    would equal a maximum that was saved: NaN. So it is computed from the same elements."""
    for target in _EXTREMES:
        for node in joint.graph.find_nodes(op="call_function", target=target):
            if _is_compared(node):
                node.meta["recompute"] = scores.MUST_RECOMPUTE


def recompute_made(joint: torch.fx.GraphModule) -> None:
    """Progressions, and tensors of one number, take no memory where they are known: the gradient of
    an embedding of positions is a copy of rows, by unknown indices it is a sum."""
    for node in list(joint.graph.nodes):
        if node.target in _LIKE or node.target in _LIKE_ARGUMENT:
            node = _from_sizes(node)
        if node.target in _MADE:
            node.meta["recompute"] = scores.MUST_RECOMPUTE


def _from_sizes(node: torch.fx.Node) -> torch.fx.Node:
    """Instead of one like another tensor, which need not be kept for it then. Itself where sizes
    are known at the call, or where memory is not in their order."""
    value = node.meta["val"]
    if not all(isinstance(size, int) for size in value.shape) or not value.is_contiguous():
        return node
    told = _LIKE_ARGUMENT.get(node.target)
    with node.graph.inserting_before(node):
        number = _LIKE[node.target] if told is None else node.args[told]
        made = filled(node.graph, value, number)
    made.meta = dict(node.meta)
    node.replace_all_uses_with(made)
    node.graph.erase_node(node)
    return made


def _is_compared(node: torch.fx.Node) -> bool:
    """Whether it, or a view of it, is tested for equality."""
    todo = [node]
    while todo:
        users = todo.pop().users
        if any(user.target in scores.EQUAL for user in users):
            return True
        todo += [user for user in users if user.target in scores.VIEWS]
    return False


def widen_statistics(gm: torch.fx.GraphModule) -> None:
    """A batch norm of 16-bit values with float32 parameters saves its mean and deviation in
    float32, as the kernels do; fake tensors say 16 bits on the CPU."""
    for node in gm.graph.find_nodes(op="call_function", target=_BATCH_NORM):
        parameters = [a.meta["val"].dtype for a in node.args[1:5] if isinstance(a, torch.fx.Node)]
        if torch.float32 not in parameters:
            continue
        y, mean, rstd, *running = node.meta["val"]
        node.meta["val"] = (y, mean.float(), rstd.float(), *running)
        for user in node.users:
            user.meta["val"] = node.meta["val"][user.args[1]]


_IN_PLACE = {
    aten.index_put.default: aten.index_put_.default,
    aten.scatter.src: aten.scatter_.src,
    aten.scatter.value: aten.scatter_.value,
    aten.scatter_add.default: aten.scatter_add_.default,
    aten.index_add.default: aten.index_add_.default,
    aten.index_copy.default: aten.index_copy_.default,
}


def write_in_place(gm: torch.fx.GraphModule) -> None:
    """y = index_put(x, at, v); ...; copy_(x, y)  ->  index_put_(x, at, v); ...

    For an input x that nothing reads between the two but through y: a step of decoding then writes
    one row of its cache, and not the whole of it twice.
    """
    order = {node: position for position, node in enumerate(gm.graph.nodes)}
    for copy in gm.graph.find_nodes(op="call_function", target=aten.copy_.default):
        target, value = copy.args[:2]
        if (
            value.target in _IN_PLACE
            and value.args[0] is target
            and _last_read(target, value, order)
        ):
            value.target = _IN_PLACE[value.target]
            value.replace_all_uses_with(target)
            gm.graph.erase_node(copy)


def _last_read(target: torch.fx.Node, value: torch.fx.Node, order: dict) -> bool:
    """`value` is the last to read `target`, but for the copy back; no view of it lives on."""
    if any(user.op == "output" for user in (*target.users, *value.users)):
        return False
    readers = [user for user in target.users if user.target is not aten.copy_.default]
    if any(torch_private.is_view(reader) for reader in readers):
        return False
    return max(order[reader] for reader in readers) == order[value]
