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
        "Move the operation between them before or after both. It reads one and feeds the other."
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
        "Reduce over the last dimension, if the model can. A sum over all rows must be complete "
        "before its first reader starts."
    ),
    Reason.NO_FRAME: "Reduce over the same dimensions in both.",
    Reason.PARTIAL_STORE: (
        "Broadcast last. The fused kernel would store a small result together with a large one."
    ),
    Reason.SCATTER: "If the model can, use index_select or gather with indices that do not repeat.",
    Reason.ROW_SUMS: "Make rows shorter or contiguous, if the model can.",
    Reason.SORT: "Nothing: several rows are sorted at a time, which takes all registers.",
    Reason.NO_HOME: "Drop this result from the outputs if it is not used.",
    Reason.TOO_MANY_BUFFERS: "Concatenate the operands (one packed tensor rather than many).",
    Reason.TOO_LONG: "Nothing: with so much arithmetic, memory traffic hardly counts.",
    Reason.SPILL: "Nothing: one kernel would be slower than two.",
    Reason.MEMORY: "Nothing: peak memory would rise.",
    Reason.PRODUCT: "Nothing: the rows are reduced after the product is complete.",
    Reason.TEMPLATE: "Use bfloat16 or float16, and sizes that are multiples of 8.",
    Reason.EPILOGUE: "Use ReLU or tanh GELU after the linear layer, if the model can.",
    Reason.READERS: "Nothing, if they need it. If it is an unused output of the model, drop it.",
    Reason.ALL_ROWS: (
        "Return the loss instead of the large result. Compute each row's loss without other rows. "
        "Compile for known sizes (dynamic=False)."
    ),
    Reason.SMALL_ROWS: "Nothing: the result is small enough to stay in memory.",
    Reason.SLOWER: "Nothing: the cost model predicts no gain.",
    Reason.MARGIN: "Nothing: the cost model predicts almost no gain.",
    Reason.BETTER: "Nothing: another fusion is predicted to be faster.",
}

# A library call of the plan that a later stage made a kernel of our own.
OWN_KERNEL = "one side is a matrix product or a convolution with a kernel of its own"
OWN_KERNEL_ADVICE = (
    "Nothing: an operation joins the kernel of a product if that is predicted to be faster."
)
