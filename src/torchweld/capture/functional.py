"""What is done with every functional graph of ATen: a joint graph before it is cut, that of an
inference before it is lowered."""

from __future__ import annotations

from torch.fx import GraphModule

from torchweld.capture import bags, columns, complex_numbers, experts, filled, masked, one_hot


def rewrite(gm: GraphModule) -> None:
    """In place; each module says what it looks for."""
    bags.say_what_is_empty(gm)
    complex_numbers.as_real_numbers(gm)
    experts.by_groups(gm)
    masked.choose_in_place(gm)
    filled.put_together(gm)
    columns.compute_apart(gm)
    one_hot.by_index(gm)
