"""What `generate()` of transformers asks of a model beside its calls.

It compiles steps with a static cache by itself, with Inductor, and makes their masks beforehand,
operation by operation. A fused model is compiled already, and its masks are made inside.
"""

from __future__ import annotations

from collections.abc import Callable


def methods(kind: type) -> dict[str, Callable]:
    """Methods by name for a fused subclass of the class `kind`, in place of its own."""
    if not hasattr(kind, "prepare_inputs_for_generation"):
        return {}
    own = {"get_compiled_call": _get_compiled_call} if hasattr(kind, "get_compiled_call") else {}
    if not hasattr(kind, "create_masks_for_generate"):  # some models have masks of their own
        own["create_masks_for_generate"] = staticmethod(_keep_mask)
    return own


def _get_compiled_call(self, compile_config=None) -> Callable:
    """What is compiled."""
    return self.__call__


def _keep_mask(*, attention_mask, **others):
    """The padding mask [batch, positions], of which the model makes its own."""
    return attention_mask
