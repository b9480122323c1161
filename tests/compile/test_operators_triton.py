"""The graphs of torchweld.ops, planned for an H100: their kernels compile for it, without a GPU."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

pytest.importorskip("triton")

from products.nets import on

from operator_cases import arguments
from torchweld import ops
from torchweld.capture import function
from torchweld.capture.lower import lower
from torchweld.core.options import Options
from torchweld.operators.define import _Defined
from torchweld.passes.table import PASSES, Context
from torchweld.plan.decisions import Plan
from torchweld.plan.scores.takes import taken_by
from torchweld.runtime.triton_compile import compile_source
from torchweld.targets.find import named_target
from torchweld.templates.generate import generate_all, kernels_of

H100 = named_target("H100")


def on_h100(scores) -> bool:
    return taken_by(replace(scores, device=torch.device("cuda:0")), H100)


def sources(row, form) -> list:
    """Of all kernels, where inputs have 16 bits."""
    args = [a.bfloat16() if isinstance(a, torch.Tensor) and a.is_floating_point() else a
            for a in arguments(row)]  # fmt: skip
    tensors, rest = _Defined(row, "checked")._split(args)
    wanted = tuple(t.is_floating_point() for t in tensors)
    programs = _Defined(row, "checked")._new_programs(form, rest, wanted)
    traced = function.trace(programs._function, tensors, form, wanted, takes=on_h100)
    plan = Plan(on(lower(traced.captured).graph, "cuda:0"), ())
    for name in H100.passes:
        plan = PASSES[name].run(plan, Context(H100, Options()))
    bundles = generate_all(kernels_of(plan.graph, H100))
    return [source for bundle in bundles.values() for source in bundle.sources]


@pytest.mark.parametrize("row", [r for r in ops.TABLE if r.name != "dropout_add"],
                         ids=lambda r: r.name)
def test_kernels_compile(row):
    forms = ("results", "ahead") if row.ahead else ("results", "gradients")
    found = [source for form in forms for source in sources(row, form)]
    assert found
    for source in found:
        assert compile_source(source, 90) is not None
