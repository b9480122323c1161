"""What a user can change in a model so that neighbours that were left apart are fused: a sentence
for each reason, empty where nothing can be."""

from __future__ import annotations

from torchweld.plan.refusals import Reason

ADVICE: dict[Reason, str] = {
    Reason.EXTERN: (
        "Nothing in most models: matrix products, convolutions and attention are faster as library "
        "calls. If the call is none of these, write it with other operations of torch."
    ),
    Reason.DEVICES: "Keep the tensors of this step on one device.",
    Reason.REENTRY: (
        "Move the operation between them before or after both: it reads one and feeds the other."
    ),
    Reason.MUTATION: "Use the operation that returns a new tensor (add, not add_).",
    Reason.PARTIAL_WRITE: (
        "Build the tensor in one step (torch.cat, torch.where) instead of writing slices."
    ),
    Reason.MAPS: (
        "Keep the order of dimensions between the two. A reshape of permuted dimensions, or an "
        "index computed at run time, prevents fusing."
    ),
    Reason.ROWS: "Normalise or reduce over the same last dimensions in both.",
    Reason.COLUMNS: "Reduce over the dimensions that the consumer works on, or over all of them.",
    Reason.SCAN: "Read the cumulative result in its own order.",
    Reason.AFTER_COLUMN_REDUCTION: (
        "Reduce over the last dimension where the model allows: the sum over all rows must be "
        "complete before its first reader starts."
    ),
    Reason.NO_FRAME: "Reduce over the same dimensions in both.",
    Reason.PARTIAL_STORE: (
        "Broadcast last: the kernel would store a small result beside a large one."
    ),
    Reason.SCATTER: "Use indices that do not repeat and index_select or gather, if the model can.",
    Reason.ROW_SUMS: "Nothing, unless rows can be shorter or contiguous.",
    Reason.NO_HOME: "Drop this result from the outputs if it is not used.",
    Reason.TOO_MANY_BUFFERS: "Concatenate the operands (one packed tensor rather than many).",
    Reason.TOO_LONG: "Nothing: beside so much arithmetic, the memory traffic is negligible.",
    Reason.SPILL: "Nothing: one kernel would be slower than two.",
    Reason.MEMORY: "Nothing: the peak of memory would rise.",
    Reason.PRODUCT: "Nothing: the rows are reduced after the product is complete.",
    Reason.TEMPLATE: "Use bfloat16 or float16, and sizes that are multiples of 8.",
    Reason.EPILOGUE: "Use gelu by tanh or relu behind a linear layer, if the model can.",
    Reason.READERS: "Nothing if they need it. Drop the output if it is not used.",
    Reason.ALL_ROWS: (
        "Return the loss rather than the large result, and keep each row's part of it apart from "
        "other rows; compile for known sizes (dynamic=False)."
    ),
    Reason.SMALL_ROWS: "Nothing: so small a result may be whole in memory.",
    Reason.SLOWER: "Nothing: the cost model predicts no gain.",
    Reason.MARGIN: "Nothing: the cost model predicts almost no gain.",
    Reason.BETTER: "Nothing: what was fused instead is predicted to be faster.",
}

# A library call of the plan that a later stage made a kernel of our own.
OWN_KERNEL = "one side is a matrix product or a convolution, which has its own kernel"
OWN_KERNEL_ADVICE = (
    "Nothing: what follows a product joins its kernel where that is predicted to be faster."
)
