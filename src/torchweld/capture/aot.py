"""The Dynamo backend: forward and backward by AOTAutograd, each graph handed to `compile_graph`.

A compiled graph has the boxed convention `fn(args: list) -> list`: it may clear `args`.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from functools import partial

import torch

from torchweld.capture import (
    attention,
    bags,
    circular,
    constant,
    decompose,
    effects,
    experts,
    functional,
    interpolation,
    joint,
    losses,
    paddings,
    pieces,
    random,
    recurrent,
    running_products,
    small_products,
    softmaxes,
    steps,
    torch_private,
    tracing,
    turned,
    unread,
    unrolled,
    written_out,
)
from torchweld.capture.captured import Captured
from torchweld.capture.inline import inline
from torchweld.capture.lower import origin_of, text_of
from torchweld.capture.scores import Takes
from torchweld.capture.told import warn_of
from torchweld.core import events
from torchweld.core.errors import IndexOutOfRange, NotLowered, one_line
from torchweld.core.options import Options

Boxed = Callable[[list], Sequence]
CompileGraph = Callable[[Captured, Options], Boxed]
OnCompiled = Callable[[Captured, Boxed], None]

_numbers = itertools.count()


def make_backend(
    compile_graph: CompileGraph,
    options: Options,
    on_compiled: OnCompiled | None = None,
    takes: Takes | None = None,
) -> Callable:
    """backend(gm, example_inputs) -> callable, for torch.compile.

    `on_compiled(captured, callable)` is told of each graph when `compile_graph` has compiled it.
    `takes` says which scores of attention have kernels that never hold them in memory.
    """

    def backend(gm: torch.fx.GraphModule, example_inputs: Sequence) -> Callable:
        name = f"graph{next(_numbers)}"
        session = _Session(compile_graph, options, on_compiled, name, takes)
        try:
            inline(gm)
            attention.simplify(gm)
            if options.numerics != "eager":
                softmaxes.say_softmax(gm)
            unread.take_parts_first(gm)
            experts.said_by_groups(gm)
            recurrent.keep_whole(gm)
            unrolled.hoist_products(gm)
            written_out.write_out(gm, takes)
            bags.write_out_bags(gm)
            circular.write_out_circular(gm)
            paddings.take_in(gm)
            interpolation.keep_gradients(gm)
            running_products.keep_short(gm)
            losses.say_margins(gm)
            return session.trace(gm, example_inputs)
        except torch_private.DynamoControl:
            raise
        except Exception as error:
            if _has_sizes_from_data(gm):
                tracing.trace_again_without_sizes()
            message = f"a graph was not traced, and runs in eager: {one_line(error)}"
            warn_of(error, f"trace:{one_line(error)}", message)
            return gm.forward

    return backend


def _has_sizes_from_data(gm: torch.fx.GraphModule) -> bool:
    return any(torch_private.sizes_from_data(constant.traced_value(n)) for n in gm.graph.nodes)


def compile_or_run_eagerly(
    compile_graph: CompileGraph,
    captured: Captured,
    options: Options,
    on_compiled: OnCompiled | None = None,
) -> Boxed:
    """`compile_graph(captured, options)`; if that or its first call raises, the captured operations
    one by one, with one warning per cause. A graph with operations that cannot be lowered is cut
    there."""
    try:
        compiled = compile_graph(captured, options)
    except NotLowered as error:
        made = _in_pieces(compile_graph, captured, options, on_compiled, error)
        if made is not None:
            return made
        if _has_sizes_from_data(captured.module):
            tracing.trace_again_without_sizes()
        _warn_unfused("compile", captured, error)
        compiled = run_eagerly(captured.module)
    except Exception as error:
        _warn_unfused("compile", captured, error)
        compiled = run_eagerly(captured.module)
    if on_compiled is not None:
        on_compiled(captured, compiled)
    return _FirstCallGuarded(captured, compiled)


def _in_pieces(compile_graph, captured: Captured, options, on_compiled, error: NotLowered):
    """All but what is not lowered, compiled; None if that is nothing."""

    def compile_piece(piece: Captured) -> Boxed:
        try:
            compiled = compile_graph(piece, options)
        except NotLowered:
            raise
        except Exception as error:
            _warn_unfused("compile", piece, error)
            return run_eagerly(piece.module)
        if on_compiled is not None:
            on_compiled(piece, compiled)
        return _FirstCallGuarded(piece, compiled)

    made = None
    if error.node is not None:
        made = pieces.in_pieces(captured, error.node, compile_piece, run_eagerly)
    if made is not None:
        message = (
            f"{captured.name} ({captured.kind}) is fused in pieces: {_place(captured, error)} "
            f"cannot be fused and runs unchanged: {one_line(error)}"
        )
        # nothing that the user could change, or would gain by it
        expected = made.is_whole or _has_sizes_from_data(captured.module)
        (events.record if expected else events.warn_once)(f"pieces:{one_line(error)}", message)
    return made


def _place(captured: Captured, error: NotLowered) -> str:
    """The operation that was not lowered, with its place in the user's model."""
    nodes = (n for n in captured.module.graph.nodes if n.name == error.node)
    node = next(nodes, None)
    return error.node or "" if node is None else text_of(origin_of(node))


class _FirstCallGuarded:
    """A compiled graph that is replaced by its operations if its first call fails.

    A graph that writes to its inputs cannot be run twice: there the error is the user's to see.
    """

    _boxed_call = True

    def __init__(self, captured: Captured, compiled: Boxed) -> None:
        self._captured, self._compiled = captured, compiled
        self._trusted = any(constant.writes(n) for n in captured.module.graph.nodes)

    def __call__(self, args: list) -> Sequence:
        if self._trusted:
            return self._compiled(args)
        kept = list(args)
        try:
            results = self._compiled(args)
        except IndexOutOfRange:  # the graph works; what it was given does not
            raise
        except Exception as error:
            _warn_unfused("call", self._captured, error)
            self._compiled = run_eagerly(self._captured.module)
            results = self._compiled(kept)
        self._trusted = True
        return results

    @property
    def settled(self) -> Boxed | None:
        """The compiled graph itself, once a call has gone well."""
        return self._compiled if self._trusted else None

    def again(self, args: list) -> Sequence:
        """A call whose parameters and buffers are as they were at the call before."""
        return getattr(self._compiled, "again", self)(args)


def _warn_unfused(stage: str, captured: Captured, error: Exception) -> None:
    message = f"{captured.name} ({captured.kind}) runs unfused: {one_line(error)}"
    warn_of(error, f"{stage}:{one_line(error)}", message)


def run_eagerly(module: torch.fx.GraphModule) -> Boxed:
    """The module's operations one by one, freeing each value after its last use."""

    def run(args: list) -> Sequence:
        inputs = tuple(args)
        args.clear()
        return module(*inputs)

    return run


class _Session:
    """One Dynamo graph on its way: what its compilers share."""

    def __init__(self, compile_graph, options, on_compiled, name: str, takes=None) -> None:
        self._takes = takes
        self._compile_graph, self._options, self._on_compiled = compile_graph, options, on_compiled
        self._name, self._since = name, time.perf_counter()
        self._static_names: frozenset[str] = frozenset()  # the forward's parameters and buffers
        self._kept_names: frozenset[str] = frozenset()  # what it keeps for the backward
        self._count = 0  # inputs of a plain graph
        self._plain: torch_private.Plain | None = None
        self._switch: steps.Switch | None = None
        self._quick: Callable | None = None
        self._compiled_forward: Boxed | None = None

    def trace(self, gm: torch.fx.GraphModule, example_inputs: Sequence) -> Callable:
        """The callable for Dynamo's graph; it compiles what AOTAutograd makes of it on the way."""
        compilers = self.forward, self.backward, self.inference
        partition = partial(
            joint.partition, takes=self._takes, budget=self._options.memory_budget
        )
        traced = torch_private.trace_with_autograd(*compilers, partition, decompose.table())
        careful = traced(gm, example_inputs)
        as_given = self._count == len(example_inputs)  # else AOTAutograd makes others of Dynamo's
        if not (as_given and torch_private.are_plain(example_inputs)):
            return careful
        self._switch = steps.Switch(careful, self._quick)
        return self._switch

    def inference(self, gm: torch.fx.GraphModule, example_inputs) -> Boxed:
        joint.drop_detach(gm)
        functional.rewrite(gm)
        random.gather_seeds(gm)
        joint.write_in_place(gm)
        compiled = self._compile(gm, "inference", torch_private.static_input_positions())
        if torch_private.is_plain_graph():
            self._count = len(example_inputs)
            self._quick = steps.quick_call(compiled, torch_private.autocasts())
        return compiled

    def forward(self, gm: torch.fx.GraphModule, example_inputs) -> Boxed:
        static = torch_private.static_input_positions()
        self._static_names = _names_at(gm, static)
        outputs = gm.graph.output_node().args[0]
        results = torch_private.number_of_results()
        kept = range(len(outputs) if results is None else results, len(outputs))
        asked = outputs[results:]  # all, where that is not known: without Dynamo
        self._kept_names = frozenset(getattr(out, "name", "") for out in asked)
        self._plain = torch_private.plain_step()
        self._count = 0 if self._plain is None else len(example_inputs)
        self._compiled_forward = self._compile(gm, "forward", static, frozenset(kept))
        return self._compiled_forward

    def backward(self, gm: torch.fx.GraphModule, example_inputs) -> Boxed:
        """Compiled at the first backward: a forward whose gradient nobody asks for pays nothing."""
        names = [n.name for n in gm.graph.find_nodes(op="placeholder")]
        static = frozenset(i for i, name in enumerate(names) if name in self._static_names)
        wanted = [out is not None for out in gm.graph.output_node().args[0]]
        compiled: list[Boxed] = []

        def run(args: list) -> Sequence:
            if compiled:
                return compiled[0](args)
            take = partial(_take_strides, gm, args, self._kept_names)
            compiled.append(self._compile(gm, "backward", static, first=take))
            found = compiled[0](args)
            self._quicken(compiled[0], wanted)
            return found

        run._boxed_call = True
        return run

    def _quicken(self, backward: Boxed, wanted: Sequence[bool]) -> None:
        """From the next call on, both graphs are called with less around them, if they are plain.
        `wanted`: of each input, whether it has a gradient; others that are no leaves must not seem
        to have one, so AOTAutograd detaches them."""
        plain, switch = self._plain, self._switch
        if switch is not None and all(w or leaf for w, leaf in zip(wanted, plain.leaves)):
            both = (self._compiled_forward, backward)
            settled = (getattr(boxed, "settled", None) or boxed for boxed in both)
            switch.needs_grad = True  # first: other threads may call it meanwhile
            switch.quick = steps.quick_step(plain, *settled)

    def _compile(
        self,
        gm: torch.fx.GraphModule,
        kind,
        static,
        loose: frozenset[int] = frozenset(),
        first: Callable[[], None] = lambda: None,
    ) -> Boxed:
        def compile_graph(captured: Captured, options: Options) -> Boxed:
            first()
            return self._compile_graph(captured, options)

        effects.checks_as_calls(gm)
        if kind == "backward":
            turned.turn_gradients(gm)
        small_products.write_out_batches(gm)
        gm.recompile()
        capture_s = 0.0 if kind == "backward" else time.perf_counter() - self._since
        captured = Captured(gm, f"{self._name}_{kind}", kind, static, loose, capture_s)
        return compile_or_run_eagerly(compile_graph, captured, self._options, self._on_compiled)


def _names_at(gm: torch.fx.GraphModule, positions: frozenset[int]) -> frozenset[str]:
    names = [n.name for n in gm.graph.find_nodes(op="placeholder")]
    return frozenset(names[p] for p in positions if p < len(names))


def _take_strides(gm: torch.fx.GraphModule, args: Sequence, names: frozenset[str]) -> None:
    """The placeholders with these names say the strides that their values really have, where these
    are numbers: the forward may have laid them out in another way than eager. Errors: ValueError
    where torch traced another shape than the value has (torch 2.11: a norm of an empty tensor)."""
    for node, arg in zip(gm.graph.find_nodes(op="placeholder"), args):
        value = node.meta.get("val")
        if node.name in names and isinstance(value, torch.Tensor):
            known = all(isinstance(n, int) for n in (*value.shape, *value.stride()))
            if known and value.shape != arg.shape:
                shapes = f"{tuple(value.shape)}, and is {tuple(arg.shape)}"
                raise ValueError(f"{node.name}, kept for the backward, was traced as {shapes}")
            if known and value.stride() != arg.stride():
                node.meta["val"] = value.as_strided(value.shape, arg.stride())
