"""A function of tensors as a graph: of its results, of its gradients, or of a loss with both.

    results    f(x)                        inference
    gradients  (tangents, x) -> dx         all of the forward that they need is computed again
    ahead      x -> loss, dx               for a tangent of one: a loss is linear in its tangent

The graphs are AOTAutograd's, with the decompositions that the Dynamo backend has. They are made in
a thread of their own: whoever asks may be below autograd, in autocast or in inference mode, and a
graph must not depend on that.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal

import torch

from torchweld.capture import (
    decompose,
    functional,
    joint,
    losses,
    random,
    scores,
    torch_private,
)
from torchweld.capture.calls import filled
from torchweld.capture.captured import Captured

aten = torch.ops.aten
Node = torch.fx.Node
Function = Callable[..., Sequence[torch.Tensor]]
Form = Literal["results", "gradients", "ahead"]

_numbers = itertools.count()


@dataclass(frozen=True)
class Traced:
    """`captured` takes the sizes that are symbols, the tensors, and for "gradients" the tangents of
    all results. `given`: for each tensor whether its gradient is among the results; it is not where
    none is wanted, nor where the function does not depend on it. `fakes`: the tensors that it was
    made with. `sizes`: where the symbols are, as (tensor, dimension)."""

    captured: Captured
    given: tuple[bool, ...]
    fakes: tuple[torch.Tensor, ...]
    sizes: tuple[tuple[int, int], ...]


def trace(
    function: Function, tensors: Sequence[torch.Tensor], form: Form = "results",
    wanted: Sequence[bool] = (), varying: Sequence[frozenset[int]] = (), name: str = "function",
    takes: scores.Takes | None = None,
) -> Traced:  # fmt: skip
    """`function(*tensors)`, a pure function that returns fresh tensors, as a graph.

    `wanted`: of each tensor, whether its gradient is. `varying`: of each, the dimensions whose
    sizes are symbols; equal sizes are one symbol. `takes`: which scores of attention have kernels
    that never hold them. Raises what torch raises for a function that it cannot trace."""
    with ThreadPoolExecutor(1) as clean:
        return clean.submit(
            _trace, function, tuple(tensors), form, tuple(wanted), tuple(varying), name, takes
        ).result()


def run(
    function: Function, tensors: Sequence[torch.Tensor], form: Form, wanted: Sequence[bool]
) -> list[torch.Tensor]:
    """The same in eager; for "gradients" the tangents follow the tensors."""
    with ThreadPoolExecutor(1) as clean:
        return clean.submit(_run, function, list(tensors), form, tuple(wanted)).result()


def _run(function, tensors, form: Form, wanted) -> list[torch.Tensor]:
    if form == "results":
        with torch.no_grad():
            return [t.clone() for t in function(*tensors)]  # never a view of an input
    count = len(wanted)
    inputs = [t.detach().requires_grad_(w) for t, w in zip(tensors, wanted)]
    results, ends = list(function(*inputs)), [t for t, w in zip(inputs, wanted) if w]
    tangents = tensors[count:] or [torch.ones_like(r) for r in results]
    made = torch.autograd.grad(results, ends, tangents, allow_unused=True)
    gradients = [torch.zeros_like(t) if g is None else g for g, t in zip(made, ends)]
    return gradients if form == "gradients" else [*[r.detach() for r in results], *gradients]


def _trace(function, tensors, form: Form, wanted, varying, name: str, takes) -> Traced:
    start = time.perf_counter()
    fakes = torch_private.fakes_of(tensors, varying)
    sizes = _symbols(fakes)
    symbols = [fakes[t].shape[d] for t, d in sizes]
    if form != "results":
        fakes = tuple(f.requires_grad_(w) for f, w in zip(fakes, wanted))

    def flat(*args):
        made = function(*args[len(sizes) :])
        return [t.clone(memory_format=torch.contiguous_format) for t in made]  # never a view

    gm = torch_private.joint_graph(
        flat, (*symbols, *fakes), decompose.table(), gradients=form != "results")
    _clean(gm)
    scores.recompute_scores(gm, takes if form == "gradients" else None)
    given = _keep(gm, form, len(sizes), len(tensors)) if form != "results" else ()
    gm.graph.eliminate_dead_code()
    gm.recompile()
    kind: Literal["inference", "backward"] = "backward" if form == "gradients" else "inference"
    seconds = time.perf_counter() - start
    captured = Captured(gm, f"{name}_{form}{next(_numbers)}", kind, capture_s=seconds)
    return Traced(captured, given, fakes, sizes)


def _symbols(fakes: Sequence[torch.Tensor]) -> tuple[tuple[int, int], ...]:
    """Where each symbol is first: they are inputs, so that no operation asks for a size."""
    found: dict[str, tuple[int, int]] = {}
    for t, fake in enumerate(fakes):
        for d, size in enumerate(fake.shape):
            if isinstance(size, torch.SymInt):
                found.setdefault(str(size), (t, d))
    return tuple(found.values())


def _keep(gm: torch.fx.GraphModule, form: Form, sizes: int, tensors: int) -> tuple[bool, ...]:
    """Of a joint graph's outputs those of `form`; which gradients are there."""
    output = gm.graph.output_node()
    values = list(output.args[0])
    results, gradients = values[: -sizes - tensors], values[-tensors:]
    made: list[Node] = []
    for gradient in gradients:
        if gradient is not None:
            made.append(_fresh(gm.graph, gradient, gradient in made))
    if form == "ahead":
        _set_tangents_to_one(gm.graph)
        made = [*results, *made]
    output.args = (made,)
    output.meta.pop("desc", None)
    return tuple(g is not None for g in gradients)


def _fresh(graph: torch.fx.Graph, node: Node, is_taken: bool) -> Node:
    """Contiguous, and no result of another input."""
    value = node.meta["val"]
    if value.is_contiguous() and not is_taken and node.op != "placeholder":
        return node
    with graph.inserting_after(node):
        options = {"memory_format": torch.contiguous_format}
        copy = graph.call_function(aten.clone.default, (node,), options)
    copy.meta["val"] = value.contiguous()
    return copy


def _set_tangents_to_one(graph: torch.fx.Graph) -> None:
    inputs = graph.find_nodes(op="placeholder")
    for tangent in [n for n in inputs if n.name.startswith("tangents")]:
        with graph.inserting_after(inputs[-1]):
            one = filled(graph, tangent.meta["val"], 1)
        tangent.replace_all_uses_with(one)
        graph.erase_node(tangent)


def _clean(gm: torch.fx.GraphModule) -> None:
    """As the Dynamo backend's graphs are before they are compiled."""
    checks = aten._assert_tensor_metadata.default
    for node in gm.graph.find_nodes(op="call_function", target=checks):
        gm.graph.erase_node(node)
    joint.drop_detach(gm)
    functional.rewrite(gm)
    losses.add_up_hits(gm)
    losses.picked_by_comparison(gm)
    random.gather_seeds(gm)

