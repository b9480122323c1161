"""Small networks captured, planned for an H100 and given to the pass, with a template that takes
whatever has the form."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch.func import functionalize
from torch.fx.experimental.proxy_tensor import make_fx

from torchweld.capture.captured import Captured
from torchweld.capture.columns import compute_apart
from torchweld.capture.joint import write_in_place
from torchweld.capture.lower import lower
from torchweld.core.options import Options
from torchweld.ir.check import check_graph
from torchweld.ir.interpret import run_graph
from torchweld.ir.nodes import Comp, Extern, Graph
from torchweld.ir.size import hint, product
from torchweld.plan.decisions import Plan
from torchweld.plan.products.form import form_products
from torchweld.plan.search import plan
from torchweld.rewrite.apply import rewrite
from torchweld.targets.find import named_target
from torchweld.templates.gemm.schedule import ProductSchedule

H100 = named_target("H100")


FEW_ROWS = 64


def takes_all(accesses, contraction, buffers, device, hints) -> ProductSchedule:
    """A template without limits."""
    rows = hint(product(accesses.comp.extent(a) for a in contraction.rows), hints)
    return ProductSchedule("stream" if rows <= FEW_ROWS else "triton", 64, 64, 32, 4, 3)


def takes_none(accesses, contraction, buffers, device, hints) -> str:
    return "on principle"


def on(graph: Graph, device: str) -> Graph:
    return replace(
        graph, buffers={n: replace(b, device=device) for n, b in graph.buffers.items()}
    )


def captured(function, *args, mode: str = "fake") -> Graph:
    """The rewritten graph of a function of tensors, as if they were on a GPU."""

    def listed(flat):
        found = function(*flat)
        return list(found) if isinstance(found, (tuple, list)) else [found]

    module = make_fx(functionalize(listed), tracing_mode=mode, _allow_non_fake_inputs=True)(
        list(args)
    )
    compute_apart(module)
    write_in_place(module)
    graph = lower(Captured(module, "net", "inference"), Options()).graph
    return rewrite(on(graph, "cuda:0"))


def formed(graph: Graph, choose=takes_all, **options) -> tuple[Plan, Plan]:
    """The plan without and with products in its kernels."""
    before = plan(graph, H100, Options(**options))
    after = form_products(before, H100, Options(**options), choose)
    check_graph(after.graph)
    return before, after


def comps(graph: Graph) -> list[Comp]:
    return [n for n in graph.nodes if isinstance(n, Comp)]


def calls(graph: Graph) -> list[str]:
    return [n.target for n in graph.nodes if isinstance(n, Extern)]


def run(graph: Graph, args, exact: bool) -> list[torch.Tensor]:
    return run_graph(on(graph, "cpu"), list(args), exact=exact)


def error(found: torch.Tensor, precise: torch.Tensor) -> float:
    """Relative, in the L2 norm."""
    scale = precise.norm()
    return float((found.double() - precise).norm() / (scale if scale > 0 else 1.0))


def same_meaning(function, *args, mode: str = "fake") -> tuple[Plan, Plan]:
    """Forms products; asserts that the result means what it meant in float64, and that rounded as
    written it is within the contract of eager. Arguments are bfloat16 or integers."""
    graph = captured(function, *args, mode=mode)
    before, after = formed(graph)
    wide = [a.double() if a.is_floating_point() else a for a in args]
    eager, precise = (function(*a) for a in (args, wide))
    eager, precise = (list(r) if isinstance(r, (tuple, list)) else [r] for r in (eager, precise))
    exact = run(after.graph, args, exact=True)
    for one, other in zip(exact, run(before.graph, args, exact=True), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)
    found = run(after.graph, args, exact=False)
    for mine, theirs, right in zip(found, eager, precise, strict=True):
        assert mine.dtype == theirs.dtype and mine.shape == theirs.shape
        allowed = 1.5 * error(theirs, right) * (1 + 4 / mine.numel() ** 0.5) + 2**-9
        assert error(mine, right) <= allowed
    return before, after
