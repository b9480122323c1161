"""The objects that a model returns, made again from the tensors of another call."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, fields

import pytest
import torch

from torchweld.capture.results import Results, again
from torchweld.core.torch_private import pytree


@dataclass
class Output(OrderedDict):
    """As transformers' ModelOutput: what is not None is an item too."""

    first: object = None
    second: object = None
    third: object = None

    def __post_init__(self):
        for field in fields(self):
            if getattr(self, field.name) is not None:
                self[field.name] = getattr(self, field.name)

    def __setattr__(self, name, value):
        if name in self.keys() and value is not None:
            super().__setitem__(name, value)
        super().__setattr__(name, value)


@dataclass
class Counted(Output):
    def __post_init__(self):
        super().__post_init__()
        object.__setattr__(self, "count", 3)


pytree.register_pytree_node(
    Output, lambda o: (list(o.values()), list(o)), lambda v, keys: Output(**dict(zip(keys, v)))
)


def leaves(count: int) -> list[torch.Tensor]:
    return [torch.randn(2) for _ in range(count)]


def assert_same(found: Output, wanted: Output) -> None:
    assert type(found) is type(wanted)
    for a, b in ((found, wanted), (vars(found), vars(wanted))):
        assert list(a) == list(b) and all(a[key] is b[key] for key in b)
    assert list(found.items()) == list(wanted.items()) and len(found) == len(wanted)


def test_outputs_that_are_dictionaries_and_dataclasses_are_made_alike():
    made = Output(third=torch.randn(2), first=torch.randn(2))
    _, spec = pytree.tree_flatten(made)
    results = Results(spec)
    for _ in range(3):
        a, c = leaves(2)
        found = results([a, c])
        assert_same(found, Output(first=a, third=c))
        assert found.second is None and found["third"] is c
        found.second = a  # each is an object of its own
        found["more"] = c


@pytest.mark.parametrize("structure", [(1, [2, 3]), {"a": 1, "b": (2,)}, 1, [1, 2, 3], ()])
def test_other_structures_are_torchs_matter(structure):
    flat, spec = pytree.tree_flatten(structure)
    results = Results(spec)
    for _ in range(3):
        given = leaves(len(flat))
        assert pytree.tree_flatten(results(given)) == (given, spec)


def test_state_beside_the_leaves_is_left_to_the_constructor():
    a, b = leaves(2)
    assert again(Counted(a, b), [a, b]) is None
    assert again(Output(a, (a, b)), [a, b]) is None
    assert again(Output(a, a), [a, a]) is None
    assert again({"x": a}, [a]) is None
    assert again(Output(a, b), [a, b]) is not None
