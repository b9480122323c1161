"""Whether torch is told to round the factors of float32 products to TF32."""

from __future__ import annotations

import torch


def products_have_tf32() -> bool:
    """Of matrices on a GPU: `torch.set_float32_matmul_precision("high")` and its like."""
    try:
        return torch.backends.cuda.matmul.allow_tf32
    except RuntimeError:  # torch was told in the words that it has had since 2.9
        return torch.backends.cuda.matmul.fp32_precision == "tf32"
