"""Random programs through capture, planning for CUDA and Triton's interpreter (TRITON_INTERPRET=1).

One line for each kernel: "agrees", "DIFFERS", or "skipped" with the reason. Tiles are drawn too, so
that loops, shares and two-dimensional grids are seen on small sizes.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

import torch
from hypothesis import HealthCheck, given, settings

import triton_interpreted
from torchweld.capture.aot import make_backend
from torchweld.capture.lower import lower
from torchweld.core.options import Options
from torchweld.exact.fuzz import programs
from torchweld.ir import interpret
from torchweld.ir.access import Accesses, addressed
from torchweld.ir.bind import bind
from torchweld.ir.nodes import Comp, Graph
from torchweld.plan.search import plan
from torchweld.rewrite.apply import rewrite
from torchweld.templates.pointwise_reduce.gpu.default import schedule
from torchweld.templates.pointwise_reduce.gpu.schedule import Schedule, supports, valid
from triton_cases import Case, prepared
from triton_run import H100, bundle_of, launches, prepare

PROGRAMS = 40
_DRAW = random.Random(7)


def main() -> None:
    quiet = (HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much)

    @settings(max_examples=PROGRAMS, derandomize=True, deadline=None, database=None,
              suppress_health_check=quiet)  # fmt: skip
    @given(programs())
    def one(program) -> None:
        torch._dynamo.reset()
        backend = make_backend(checked_program, Options())
        with torch.no_grad():
            torch.compile(program.function(), backend=backend)(*program.make_inputs())

    one()


def checked_program(captured, options: Options):
    """Runs the planned graph by the IR interpreter, and each of its kernels by Triton's too."""
    lowered = lower(captured, options)
    graph = plan(rewrite(on(lowered.graph, "cuda:0")), H100, options).graph

    def run(inputs):
        values = [*inputs, *lowered.constants.values()]
        known = {n: t for n, t in zip(graph.inputs, values) if n is not None}
        sizes = bind(graph.symbols, values)
        for comp in (n for n in graph.nodes if isinstance(n, Comp)):
            if not set(comp.reads) <= set(known):
                continue  # it reads a library call's result
            out = interpret.run_comp(comp, known, on(graph, "cpu").buffers, sizes)
            print(judged(Case(comp.name, comp, dict(graph.buffers), sizes=sizes), known, out))
            known |= out
        return interpret.run_graph(on(graph, "cpu"), values, exact=False)

    return run


def on(graph: Graph, device: str) -> Graph:
    return replace(graph, buffers={n: replace(b, device=device) for n, b in graph.buffers.items()})


def judged(case: Case, known, wanted) -> str:
    if reason := supports(case.comp, case.buffers):
        return f"skipped {case.name}: {reason}"
    case = prepared(case)
    accesses = addressed(case.comp, case.buffers, case.sizes)
    default = schedule(case.comp, case.buffers, H100, case.sizes)
    bundle = bundle_of(case, _DRAW.choice([default, *small_tiles(accesses)]))
    made = {n: known[n] for n in case.comp.reads}
    made |= {n: torch.empty_like(t) for n, t in wanted.items()}
    if any("libdevice." in triton_interpreted.renamed(s.text) for s in bundle.sources):
        return f"skipped {case.name}: libdevice"
    prepare(case, bundle, made)
    launches(case, bundle, made, triton_interpreted.start)
    good = all(triton_interpreted.agree(made[n], t) for n, t in wanted.items())
    return f"{'agrees' if good else 'DIFFERS'} {case.name}"


def small_tiles(accesses: Accesses) -> Iterator[Schedule]:
    rows, columns = accesses.frame.rows, accesses.frame.columns
    sizes = [(r, c) for r in (1, 4) for c in (4, 16)]
    tiles = [Schedule("looped", rows, columns, *t, 4, s) for t in sizes for s in (1, 3)]
    tiles += [
        Schedule("grid", rows[:k], rows[k:], *t, 4) for t in sizes for k in range(1, len(rows))
    ]
    tiles += [
        Schedule("looped", rows[k:], columns, *t, 4, s, 1, rows[:k])
        for t in sizes for s in (1, 3) for k in range(1, len(rows))
    ]  # fmt: skip
    return (t for t in tiles if valid(t, accesses))


if __name__ == "__main__":
    main()
