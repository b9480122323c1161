"""What a user can change in a model so that neighbours that were left apart are fused: a sentence
for each reason, empty where nothing can be."""

from __future__ import annotations

from torchweld.plan.refusals import Reason

ADVICE: dict[Reason, str] = {
    Reason.EXTERN: (
        "Nothing in most models: a matrix product, a convolution or attention is the library's, "
        "and is faster so. If the call named here is none of these, write it with operations of "
        "torch that have a lowering."
    ),
    Reason.DEVICES: "Keep the tensors of this step on one device.",
    Reason.REENTRY: (
        "Do what lies between them first or last: it reads one half and is read by the other."
    ),
    Reason.MUTATION: "Use the operation that returns a new tensor (add, not add_).",
    Reason.PARTIAL_WRITE: (
        "Build the tensor whole (torch.cat, torch.where) rather than write slices of it."
    ),
    Reason.MAPS: (
        "Keep the order of dimensions between the two: a reshape that merges permuted dimensions, "
        "or an index computed at run time, stands between them."
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
        "Let the broadcast come last: a small result is needed beside a large one."
    ),
    Reason.SCATTER: "Use indices that do not repeat and index_select or gather, if the model can.",
    Reason.ROW_SUMS: "Nothing, unless rows can be shorter or contiguous.",
    Reason.NO_HOME: "Drop the output that only this result has, if nobody reads it.",
    Reason.TOO_MANY_BUFFERS: "Concatenate the operands (one packed tensor rather than many).",
    Reason.TOO_LONG: "Nothing: beside so much arithmetic, memory between two kernels is nothing.",
    Reason.SPILL: "Nothing: the kernel would be slower than the two are.",
    Reason.MEMORY: "Nothing: the peak of memory would rise.",
    Reason.PRODUCT: "Nothing: the rows are reduced after the product is complete.",
    Reason.TEMPLATE: "Use bfloat16 or float16, and sizes that are multiples of 8.",
    Reason.EPILOGUE: "Use gelu by tanh or relu behind a linear layer, if the model can.",
    Reason.READERS: "Nothing, if the others need it; drop the output if nobody reads it.",
    Reason.ALL_ROWS: (
        "Return the loss rather than the large result, and keep each row's part of it apart from "
        "other rows; compile for known sizes (dynamic=False)."
    ),
    Reason.SMALL_ROWS: "Nothing: so small a result may be whole in memory.",
    Reason.SLOWER: "Nothing: by the model of costs they are as fast apart.",
    Reason.MARGIN: "Nothing: by the model of costs they are about as fast apart.",
    Reason.BETTER: "Nothing: what was fused instead is predicted to be faster.",
}

# A library call of the plan that a later stage made a kernel of our own.
OWN_KERNEL = "one side is a product or a convolution, whose kernel is its own"
OWN_KERNEL_ADVICE = (
    "Nothing: what follows a product is in its kernel where that is predicted to be faster."
)
