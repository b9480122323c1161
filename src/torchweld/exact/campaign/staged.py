"""The second oracle: a captured graph run by the IR's interpreter after each pass, so that a wrong
result names the pass that made it. Nothing is generated or compiled: about a hundred times cheaper.

    compare after        lower -> rewrite -> ... -> plan -> ... -> extents
    in their own types   lower                                  -> extents
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Tensor

from torchweld.capture.aot import make_backend, run_eagerly
from torchweld.capture.captured import Captured
from torchweld.capture.lower import lower
from torchweld.core.errors import one_line
from torchweld.core.options import Options
from torchweld.exact.campaign.gates import folded_exactly
from torchweld.exact.fuzz import NO_NUMBERS, no_numbers
from torchweld.ir.check import check_graph
from torchweld.ir.frame import frame_of
from torchweld.ir.interpret import call_aten, run_graph
from torchweld.ir.nodes import Comp, Extern, Graph, Node
from torchweld.passes.table import PASSES, Context
from torchweld.plan.decisions import Plan
from torchweld.plan.scores.takes import taken_by
from torchweld.rewrite.rules import RULES
from torchweld.targets.find import named_target, target_of
from torchweld.targets.rates import favouring
from torchweld.targets.target import Target
from torchweld.templates.library.calls import LINEAR, PACKED_LINEAR
from torchweld.templates.pointwise_reduce.gpu.prepare import prepared_comp

# Calls chosen for what runs, not for what is meant.
_LEFT_OUT = frozenset(("library calls (GPU)", "activations in calls"))
# A pass reorders sums; in float64 that is far below what a wrong place gives.
_NEAR = 1e-9


Step = tuple[str, Callable[[Graph], Graph]]


def steps(target: Target, context: Context) -> Iterator[Step]:
    """The target's passes by name, on graphs; the rules of `rewrite` one by one."""
    for name in target.passes:
        if name == "rewrite":
            yield from ((rule.name, rule.apply) for rule in RULES)
        elif name not in _LEFT_OUT:
            yield name, lambda g, run=PASSES[name].run: run(Plan(g, ()), context).graph
    if target.kind == "cuda":
        yield "prepared", _prepared


def _prepared(graph: Graph) -> Graph:
    """Every Comp as a GPU's kernel is generated of it."""

    def of(node: Node) -> Node:
        framed = isinstance(node, Comp) and frame_of(node) is not None
        return prepared_comp(node, graph.buffers, graph.hints) if framed else node

    return replace(graph, nodes=tuple(map(of, graph.nodes)))


def target_named(device: str) -> Target:
    """Of "cpu", whose products are all our own kernels, or of a GPU by name."""
    if device != "cpu":
        return named_target(device)
    return replace(target_of("cpu"), rates=favouring("own"))


@dataclass
class Interpreter:
    """`backend`: of torch.compile, as torchweld's is, but every graph is interpreted, after each
    pass. `found`: what differs from the lowered graph, or could not be run. `device`: a name of
    targets/target.py: whose plans are made. `plain`: what torch traces is run as it is. `planned`:
    what calls give is of the last pass, in its own types, and nothing is compared; else of what was
    lowered."""

    options: Options = field(default_factory=Options)
    device: str = "cpu"
    plain: bool = False
    planned: bool = False
    found: list[str] = field(default_factory=list)

    def fuse(self, function: Callable) -> Callable:
        """`function` of tensors to a tuple of tensors, without Dynamo: its first call traces it for
        arguments like these."""
        traced: list[Callable] = []

        def call(*args: Tensor):
            if not traced:
                traced.append(self._traced(function, args))
            return traced[0](*args)

        return call

    def _traced(self, function: Callable, args: Sequence[Tensor]) -> Callable:
        graph = torch.fx.Graph()
        places = [graph.placeholder(f"x{k}") for k in range(len(args))]
        graph.output(graph.call_module("whole", tuple(places)))
        module = torch.fx.GraphModule({"whole": _Whole(function)}, graph)
        return self.backend()(module, list(args))

    def backend(self) -> Callable:
        """For torch.compile."""
        takes = partial(taken_by, target=target_named(self.device))
        return make_backend(self._compiled, self.options, takes=takes)

    def _compiled(self, captured: Captured, options: Options) -> Callable:
        if self.plain:
            return run_eagerly(captured.module)
        lowered = lower(captured, options)
        with folded_exactly():
            stages = list(self._stages(lowered.graph, captured, options))
        last = stages[-1][1] if stages else lowered.graph
        held = list(lowered.constants.values())

        def run(args: list) -> list:
            inputs = [*args, *held]
            args.clear()
            if self.planned:
                return run_graph(last, inputs, exact=False, extern=_called)
            self._compare(captured.kind, lowered.graph, stages, inputs)
            return run_graph(lowered.graph, inputs, exact=False, extern=_called)

        run._boxed_call = True
        return run

    def _stages(
        self, graph: Graph, captured: Captured, options: Options
    ) -> Iterator[tuple[str, Graph]]:
        """(name, graph) after each pass that changed something."""
        target, loose = target_named(self.device), frozenset(captured.loose_outputs)
        for name, apply in steps(target, Context(target, options, captured.kind, loose)):
            before = graph
            try:
                graph = apply(graph)
                check_graph(graph)
            except Exception as error:
                text = f"{type(error).__name__}: {one_line(error)}"
                self.found.append(f"{captured.kind}, pass {name!r} fails: {text}")
                return
            if graph is not before and graph != before:
                yield name, graph

    def _compare(self, kind: str, lowered: Graph, stages, inputs: list) -> None:
        """To the first difference. One without numbers (NO_NUMBERS) is told, and each pass that
        changes it, but hides none behind it."""
        wanted = run_graph(lowered, _copies(inputs), extern=_called)
        told: dict[int, str] = {}
        for name, graph in stages:
            try:
                given = run_graph(graph, _copies(inputs), extern=_called)
            except Exception as error:
                text = f"{type(error).__name__}: {one_line(error)}"
                self.found.append(f"{kind}, after pass {name!r}: {text}")
                return
            for number, (a, b) in enumerate(zip(wanted, given)):
                difference = _difference(a, b)
                if difference == told.get(number, ""):
                    continue
                told[number] = difference
                if difference:
                    self.found.append(f"{kind}, pass {name!r}, result {number}: {difference}")
                if difference and not difference.endswith(NO_NUMBERS):
                    return


def _called(node: Extern, args: list, kwargs: dict):
    """What a library call means: oneDNN itself takes no float64."""
    if node.target in (LINEAR, PACKED_LINEAR):
        return torch.nn.functional.linear(*args[:3])
    return call_aten(node, args, kwargs)


class _Whole(torch.nn.Module):
    """A function as a module, which a graph can call whatever it is."""

    def __init__(self, function: Callable) -> None:
        super().__init__()
        self._function = function

    def forward(self, *args):
        return self._function(*args)


def _copies(values: Sequence) -> list:
    """So that each run may write to its inputs."""
    return [_copy(v) if isinstance(v, Tensor) else v for v in values]


def _copy(tensor: Tensor) -> Tensor:
    """With the same strides and storage behind it."""
    tensor = tensor.detach()
    count = tensor.untyped_storage().nbytes() // tensor.element_size()
    memory = tensor.as_strided((count,), (1,), 0)
    return memory.clone().as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


def _difference(wanted, given) -> str:
    """Between results of one graph before and after a pass, both in float64."""
    if not isinstance(wanted, Tensor):
        return "" if wanted == given else f"{given} instead of {wanted}"
    if wanted.shape != given.shape:
        return f"shape {tuple(given.shape)} instead of {tuple(wanted.shape)}"
    if not wanted.is_floating_point():
        count = int((wanted != given).sum())
        return f"{count} of {wanted.numel()} elements differ" if count else ""
    given, wanted = given.double(), wanted.double()
    near = _NEAR * max(1.0, _largest(wanted))  # sums may cancel
    wrong = ~torch.isclose(given, wanted, _NEAR, near, equal_nan=True)
    count = int(wrong.sum())
    note = "" if (wrong & ~no_numbers(given, wanted)).any() else NO_NUMBERS
    return f"{count} of {wanted.numel()} elements differ{note}" if count else ""


def _largest(tensor: Tensor) -> float:
    """Of the finite magnitudes."""
    sizes = tensor.abs()[tensor.isfinite()]
    return float(sizes.max()) if sizes.numel() else 0.0
