"""Every pass between lowering and code generation, by name. A Target lists those that it wants, in
order; `pipeline.py` runs them. Each says what it does in a line."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from torchweld.core.options import Options
from torchweld.ir.nodes import Graph
from torchweld.layout.channel_groups import channels_before_groups
from torchweld.layout.channels import channels_last
from torchweld.layout.extents import align_extents
from torchweld.layout.factors import factors_together
from torchweld.layout.layouts import contiguous_rows
from torchweld.layout.one_row import rows_as_images
from torchweld.layout.rows import align_rows, align_temporaries
from torchweld.passes.biases import separate_biases
from torchweld.passes.compared import compared_as_rounded
from torchweld.passes.depthwise import depthwise_written_out
from torchweld.passes.few_channels import wide_windows
from torchweld.passes.few_terms import few_terms_written_out
from torchweld.passes.gradients import gradients_apart
from torchweld.passes.lone_functions import lone_functions_as_calls
from torchweld.passes.long_scans import scans_in_stretches
from torchweld.passes.narrow_groups import wide_groups
from torchweld.passes.neighbours import neighbours_together
from torchweld.passes.overwritten import overwrite_operands
from torchweld.passes.paddings import paddings_taken_in
from torchweld.passes.pairs import pairs_written_out
from torchweld.passes.patches import products_of_patches
from torchweld.passes.row_chunks import row_chunks
from torchweld.passes.row_totals import totals_by_rows
from torchweld.passes.side_by_side import side_by_side
from torchweld.passes.single_rows import single_rows_as_sums
from torchweld.passes.slices import slices_apart
from torchweld.passes.stacks import stacks_at_once
from torchweld.passes.statistics import statistics_apart
from torchweld.passes.steps import steps_with_stacks
from torchweld.passes.taps import taps_apart
from torchweld.passes.widened import widened_convolutions
from torchweld.plan.chains.form import form_chains
from torchweld.plan.convolutions import own_convolutions
from torchweld.plan.cpu_products import choose_products
from torchweld.plan.decisions import Plan
from torchweld.plan.dequantised import dequantised_weights
from torchweld.plan.exact_windows import exact_windows
from torchweld.plan.library_calls import cpu_calls, gpu_calls
from torchweld.plan.own_attention import own_attention
from torchweld.plan.products.form import form_products
from torchweld.plan.products.kernel import Leeway, no_leeway
from torchweld.plan.products.laid import lay_factors
from torchweld.plan.products.padded import pad_products
from torchweld.plan.scores.form import score_nests
from torchweld.plan.search import plan
from torchweld.plan.transposed import transposed_turned
from torchweld.rewrite.apply import rewrite
from torchweld.targets.target import Target
from torchweld.templates.gemm.choice import choose
from torchweld.templates.template import Choose


@dataclass(frozen=True, slots=True)
class Context:
    """What passes may ask. `kind`: inference, forward or backward. `loose_outputs`: positions of
    results that may have any strides. `choose`, `leeway`: tilings of GEMMs on a GPU, and how far
    predictions are believed, while a tuner measures. `times`: the buffers of a layer that stands
    for several, and for how many (capture/repeated.py)."""

    target: Target
    options: Options
    kind: str = "inference"
    loose_outputs: frozenset[int] = frozenset()
    choose: Choose = choose
    leeway: Leeway = no_leeway
    times: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Pass:
    """`line`: what is before and after."""

    name: str
    line: str
    run: Callable[[Plan, Context], Plan]


def _graph(change: Callable[[Graph, Context], Graph]) -> Callable[[Plan, Context], Plan]:
    """A pass that changes the graph and decides nothing that is told."""
    return lambda made, context: replace(made, graph=change(made.graph, context))


def _planned(made: Plan, c: Context) -> Plan:
    found = plan(made.graph, c.target, c.options, c.times)
    return replace(found, decisions=(*made.decisions, *found.decisions))


def _joined(made: Plan, c: Context) -> Plan:
    return form_products(made, c.target, c.options, c.choose, c.leeway)


JOIN = "join products"

PASSES: dict[str, Pass] = {
    p.name: p
    for p in (
        Pass("rewrite", "equal work twice, copies and dead values -> none",
             _graph(lambda g, c: rewrite(g))),
        Pass("widen", "16-bit convolutions without instructions -> float32 ones",
             _graph(lambda g, c: widened_convolutions(g))),
        Pass("paddings", "zeros around an image, then a convolution -> the convolution's padding",
             _graph(lambda g, c: paddings_taken_in(g, c.target, c.options))),
        Pass("gradients", "gradients of convolutions that are kernels of ours -> one by one",
             _graph(lambda g, c: gradients_apart(g, c.target, c.options))),
        Pass("slices", "slices that convolutions read -> images and weights of their own",
             _graph(lambda g, c: slices_apart(g, c.target))),
        Pass("biases", "convolution with bias -> convolution, then an addition",
             _graph(lambda g, c: separate_biases(g, c.target))),
        Pass("one row", "convolutions of rows -> of images of one row",
             _graph(lambda g, c: rows_as_images(g, c.target, c.loose_outputs))),
        Pass("channels last", "images -> channels innermost, where convolutions gain by it",
             _graph(lambda g, c: channels_last(g, c.target, c.loose_outputs))),
        Pass("im2col", "convolutions whose windows do not overlap -> products of matrices",
             _graph(lambda g, c: products_of_patches(g))),
        Pass("few channels", "windows on few channels -> windows whose rows are channels",
             _graph(lambda g, c: wide_windows(g, c.target, c.options))),
        Pass("narrow groups", "convolutions in groups of few channels -> in fewer, wider groups",
             _graph(lambda g, c: wide_groups(g, c.target, c.options))),
        Pass("depthwise", "convolutions of each channel alone -> pointwise work",
             _graph(lambda g, c: depthwise_written_out(g, c.target, c.options))),
        Pass("statistics", "norms over many pixels -> statistics, then their application",
             _graph(lambda g, c: statistics_apart(g, c.target))),
        Pass("contiguous rows", "permuted temporaries -> in the order of their reductions",
             _graph(lambda g, c: contiguous_rows(g, c.loose_outputs))),
        Pass("factors together", "products side by side, innermost -> outermost in their factors",
             _graph(lambda g, c: factors_together(g, c.loose_outputs))),
        Pass("scores", "products with a softmax between -> one kernel, no scores in memory",
             lambda made, c: score_nests(made, c.target, c.options, c.choose)),
        Pass("single rows", "products of few results -> sums, fused like any other",
             _graph(lambda g, c: single_rows_as_sums(g))),
        Pass("row totals", "reductions over everything of what rows were reduced for -> by rows",
             _graph(lambda g, c: totals_by_rows(g, c.target))),
        Pass("pairs", "reductions of a few terms of pairs of points -> pointwise work",
             _graph(lambda g, c: pairs_written_out(g))),
        Pass("lay factors", "float32 factors across the depth -> copies along it, where they pay",
             _graph(lambda g, c: lay_factors(g, c.target, c.options, c.choose))),
        Pass("plan", "one computation an operation -> one a kernel", _planned),
        Pass("long scans", "scans along an axis that is long for its rows -> in stretches",
             _graph(lambda g, c: scans_in_stretches(g, c.target))),
        Pass("row chunks", "large results used row by row -> some rows at a time, never whole",
             lambda made, c: row_chunks(made, c.target)),
        Pass("align temporaries", "rows of what products read and write -> multiples of 16 bytes",
             _graph(lambda g, c: align_temporaries(g, c.target, c.loose_outputs))),
        Pass("pad products", "unaligned rows of the caller's factors -> copies, where they pay",
             _graph(lambda g, c: pad_products(g, c.target, c.options, c.choose, c.loose_outputs))),
        Pass("exact windows", "float32 convolutions that cuDNN keeps exact -> products of our own",
             lambda made, c: exact_windows(made, c.target, c.options, c.choose)),
        Pass("transposed", "transposed convolutions -> convolutions with phases of results",
             lambda made, c: transposed_turned(made, c.target, c.options, c.choose)),
        Pass(JOIN, "library products and their readers -> one kernel, where that is faster",
             _joined),
        Pass("chains", "products in a row -> one kernel, whose intermediates stay on chip",
             lambda made, c: form_chains(made, c.target, c.options, c.choose)),
        Pass("attention", "calls of attention with few queries -> kernels",
             lambda made, c: own_attention(made, c.target)),
        Pass("dequantised weights", "weights written out for their product -> made inside it",
             lambda made, c: dequantised_weights(made, c.target, c.options)),
        Pass("products", "library products -> the cheapest way, with what follows them",
             lambda made, c: choose_products(made, c.target, c.options, c.kind)),
        Pass("own convolutions", "library convolutions -> kernels with what follows them",
             lambda made, c: own_convolutions(made, c.target, c.options)),
        Pass("channel groups", "reductions over groups of inner channels -> in two steps",
             _graph(lambda g, c: channels_before_groups(g))),
        Pass("activations in calls", "oneDNN's product, then an activation -> one call",
             lambda made, c: cpu_calls(made, c.options, c.target)),
        Pass("library calls (GPU)", "products that stay calls -> cublasLt's, with activations",
             lambda made, c: gpu_calls(made, c.options, c.kind, c.target)),
        Pass("align rows", "rows of the library's products -> the same, with copies",
             _graph(lambda g, c: align_rows(g, c.target, c.loose_outputs))),
        Pass("few terms", "reductions of a few terms that lie apart -> pointwise work",
             _graph(lambda g, c: few_terms_written_out(g))),
        Pass("taps apart", "weights read number by number -> lines of channels",
             _graph(lambda g, c: taps_apart(g))),
        Pass("steps", "a stack, and the steps that are made from each other -> one kernel",
             _graph(lambda g, c: steps_with_stacks(g, c.options))),
        Pass("stacks", "a choice of what is stacked at each point -> all that is stacked at once",
             _graph(lambda g, c: stacks_at_once(g, beside=c.target.kind == "cpu"))),
        Pass("neighbours", "windows -> several neighbours a thread, which share what they read",
             _graph(lambda g, c: neighbours_together(g, c.target))),
        Pass("overwrite operands", "pointwise results -> in the memory of operands that end there",
             _graph(lambda g, c: overwrite_operands(g))),
        Pass("side by side", "equal pointwise kernels on the caller's tensors -> one launch",
             _graph(lambda g, c: side_by_side(g, c.options))),
        Pass("lone functions", "kernels of one function of one tensor -> calls of ATen",
             _graph(lambda g, c: lone_functions_as_calls(g))),
        Pass("compared", "sums of products that another kernel compares -> of rounded products",
             _graph(lambda g, c: compared_as_rounded(g))),
        Pass("align extents", "odd extents of products -> even ones, or in two parts",
             _graph(lambda g, c: align_extents(g, c.target))),
    )
}  # fmt: skip
