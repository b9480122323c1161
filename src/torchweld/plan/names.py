"""Readable names for kernels: what they do, in at most five words."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

from torchweld.ir.nodes import Comp, Origin

_MOST_WORDS = 5
_SILENT = re.compile(
    "to_copy|to|copy|clone|view|expand|permute|detach|unsqueeze|squeeze|alias|slice|select|full|t"
    "|arange|transpose|convert_element_type"
)
_PLAIN = re.compile(
    "add|sub|rsub|mul|div|neg|pow|eq|ne|lt|le|gt|ge|where|sum|mean|cat|bitwise_.*|logical_.*|index"
    "|.?mm|addmm|sin|cos|rsqrt|masked_fill"
)
_SHORTER = {
    "native_layer_norm": "layer_norm",
    "_softmax": "softmax",
    "_log_softmax": "log_softmax",
    "native_group_norm": "group_norm",
    "native_batch_norm": "batch_norm",
    "_fused_rms_norm": "rms_norm",
    "native_layer_norm_backward": "layer_norm_backward",
    "_softmax_backward_data": "softmax_backward",
    "_native_batch_norm_legit_no_training": "batch_norm",
    "threshold_backward": "relu_backward",
}


def kernel_names(comps: Iterable[Comp], taken: Iterable[str] = ()) -> list[str]:
    """One name for each, all different and different from `taken`."""
    used, names = Counter(taken), []
    for comp in comps:
        base = kernel_name(comp.origins) or _identifier(comp.name)
        used[base] += 1
        name = base if used[base] == 1 else f"{base}_{used[base] - 1}"
        while name != base and used[name]:
            used[base] += 1
            name = f"{base}_{used[base] - 1}"
        used[name] += name != base
        names.append(name)
    return names


def kernel_name(origins: tuple[Origin, ...]) -> str:
    """The operations that a kernel does: fused_add_layer_norm; "" if nothing is known of them."""
    words = [w for w in dict.fromkeys(_word(o.op) for o in origins) if w]
    loud = [w for w in words if not _SILENT.fullmatch(w)] or words
    if not loud:
        return ""
    ranked = sorted(loud, key=lambda w: bool(_PLAIN.fullmatch(w)))[:_MOST_WORDS]
    shown = [w for w in loud if w in ranked]
    return "_".join((["fused"] if len(origins) > 1 else []) + shown)


def _word(op: str) -> str:
    """aten.native_layer_norm.default -> layer_norm"""
    parts = op.split(".")
    word = parts[1] if len(parts) > 1 and parts[0] in ("aten", "prims", "torchweld") else parts[0]
    return _identifier(_SHORTER.get(word, word)).strip("_")


def _identifier(text: str) -> str:
    return re.sub(r"\W+", "_", text)
