"""The fuzzer's table of lines: every pattern runs on some input, so that none is dead."""

import torch
from hypothesis import strategies as st

from torchweld.exact import templates
from torchweld.exact.templates import Scope

VALUES = (
    torch.randn(4, 6),
    torch.randn(6, 6),
    torch.tensor([0, 1, 2, 1]),
    torch.rand(4, 6) < 0.5,
)


def test_every_pattern_runs():
    patterns = [
        p
        for name in dir(templates)
        if name.isupper() and isinstance(getattr(templates, name), tuple) and name != "FLOATS"
        for p in getattr(templates, name)
        if isinstance(p, str)
    ]
    assert len(patterns) > 80
    scope = Scope(st.data(), {f"x{k}": v for k, v in enumerate(VALUES)})
    dead = [p for p in patterns if not any(_runs(scope, p, x) for x in scope.values)]
    assert not dead


def _runs(scope, pattern, x):
    filled = pattern.format(x=x, y="x0", d=0, n=4, last=(6,))
    return scope.run(filled) is not None
