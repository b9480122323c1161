"""Products with their neighbours on a GPU: library call and the rest apart, against each candidate
schedule of each form of fused kernel.

    python bench/gpu_products.py [--only gated,stream] [--forms gluon,gluon stream,triton,stream]
                                 [--candidates 8] [--seconds 150]
                                 [--unaligned] [--names]

`library` is cuBLAS as torch calls it (gate and up merged into one product), and one generated
pointwise kernel for what follows. Each way is a CUDA graph of one call for each set of inputs; sets
rotate so that L2 does not hold the weights; ways are replayed in turn, and each round gives the
ratio of a way to the library. What fails to compile or computes something else is recorded and
skipped; a fault of the GPU is recorded, and another process goes on with the next shape. The table
comes last; JSON goes to $OUT (default ./out) after each shape.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field
from importlib import import_module
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from product_cases import parts
from product_kinds import KINDS, PAIRS, SHAPES, UNALIGNED
from torchweld.codegen.source import KernelBundle, KernelSource
from torchweld.core import dtypes
from torchweld.ir.size import product
from torchweld.runtime.dispatch import Pointer
from torchweld.runtime.launcher import launch_plan
from torchweld.runtime.triton_compile import compile_source, compile_triton, resources
from torchweld.targets.find import named_target, target_of
from triton_cases import Case
from triton_run import bundle_of

ROTATED_BYTES = 300 << 20  # six times the L2 of an H100
MAX_SETS = 40
ROUNDS = 12
FORMS = {  # form: the modules of its schedule and its template
    form: (f"torchweld.templates.gemm.{folder}.schedule",
           f"torchweld.templates.gemm.{folder}.generate")
    for form, folder in (("gluon", "hopper"), ("gluon stream", "skinny"), ("triton", "triton"),
                         ("stream", "triton"))
}


@dataclass
class Way:
    """One way to do a workload: the kernels (none: the library), what is measured of them."""

    name: str
    schedule: dict = field(default_factory=dict)
    bundle: KernelBundle | None = None
    us: float | None = None
    ratio: float | None = None  # of the library's time to this, by rounds
    problem: str | None = None
    resources: list = field(default_factory=list)
    kernels: list[str] = field(default_factory=list)  # of the library

    @property
    def record(self) -> dict:
        left_out = ("bundle",)
        return {k: v for k, v in vars(self).items() if k not in left_out and v is not None}


@dataclass
class Work:
    kind: str
    m: int
    n: int
    k: int
    case: Case
    ways: list[Way]
    problem: str | None = None
    done: bool = False
    named: bool = False  # whether the library's kernels are to be named

    @property
    def label(self) -> str:
        return f"{self.kind} {self.m} x {self.n} x {self.k}"

    @property
    def bytes(self) -> int:
        """Read and written, each once."""
        buffers = self.case.buffers.values()
        return sum(product(b.shape) * b.dtype.bytes for b in buffers)

    @property
    def flops(self) -> int:
        pair = 2 if self.kind in PAIRS else 1
        return 2 * pair * self.m * self.n * self.k


def work_of(kind: str, m: int, n: int, k: int, forms: Iterable[str], most: int, table) -> Work:
    case = KINDS[kind].fused(m, n, k)
    ways = [w for f in forms for w in _ways(case, f, table)[:most]]
    return Work(kind, m, n, k, case, [Way("library"), *ways])


def _ways(case: Case, form: str, table) -> list[Way]:
    """The candidates of a form, none where it refuses."""
    try:
        rules, template = map(import_module, FORMS[form])
    except ImportError:
        return []
    accesses, contraction = parts(case)
    if contraction is None or rules.supports(accesses, contraction, table):
        return []
    found = []
    for s in rules.candidates(accesses, contraction, table, {}):
        if s.form == form:
            found.append(_way(case, s, template.generate))
    return found


def _way(case: Case, schedule, generate: Callable) -> Way:
    made = Way(schedule.form, asdict(schedule))
    try:
        made.bundle = generate(case.comp, case.buffers, schedule, {})
    except Exception as error:
        made.problem = f"generate: {type(error).__name__}: {error}"
    return made


# compiling, in other processes: Triton's cache has the binaries for this one


def compile_all(works: list[Work], arch: int, deadline: float) -> None:
    sources = {s: w for work in works for w in work.ways if w.bundle for s in w.bundle.sources}
    context = multiprocessing.get_context("spawn")
    processes = max(1, min(len(sources), (os.cpu_count() or 2) - 1))
    with ProcessPoolExecutor(processes, mp_context=context) as pool:
        jobs = {pool.submit(_compile, source, arch): way for source, way in sources.items()}
        try:
            for done in as_completed(jobs, timeout=max(1.0, deadline - time.monotonic())):
                jobs[done].problem, jobs[done].resources = done.result()
        except TimeoutError:
            pool.shutdown(wait=False, cancel_futures=True)
        for job, way in jobs.items():
            if not job.done() or job.cancelled():
                way.problem = "not compiled in time"


def _compile(source: KernelSource, arch: int) -> tuple[str | None, list]:
    try:
        return None, [asdict(resources(compile_source(source, arch)))]
    except Exception as error:
        return f"compile: {error}"[:300], []


# running


def tensors_of(work: Work, seed: int) -> dict[str, torch.Tensor]:
    """All buffers of the fused Comp and of the library's way; weights are such that results are
    about one."""
    torch.manual_seed(seed)
    made = {n: _random(b) for n, b in work.case.buffers.items()}
    if work.kind in PAIRS:
        whole = torch.randn(2 * work.n, work.k, device="cuda", dtype=torch.bfloat16)
        made |= dict(zip(PAIRS[work.kind], whole.mul_(work.k**-0.5).chunk(2)))
        made["whole"] = whole
    else:
        for name in (n for n in made if n.startswith("w")):
            made[name].mul_(work.k**-0.5)
        made["whole"] = made.get("w")
    columns = work.n * (2 if work.kind in PAIRS else 1)
    made["p"] = torch.empty(work.m, columns, device="cuda", dtype=torch.bfloat16)
    made["want"] = {n: torch.empty_like(made[n]) for n in work.case.comp.writes}
    return made


def _random(buffer) -> torch.Tensor:
    dtype = dtypes.to_torch(buffer.dtype)
    made = torch.empty_strided(buffer.shape, buffer.strides, device="cuda", dtype=dtype)
    return made.normal_()


def library_call(work: Work, t: dict) -> Callable[[], None]:
    """What precedes, the library, what follows; the results are in `want`."""
    kind = KINDS[work.kind]
    given = {**t, **t["want"], "w": t["whole"]}
    before = after = None
    if kind.before is not None:
        given |= {"h": t["x"], "x": torch.empty_like(t["x"])}
        before = kernel_call(kind.before(work.m, work.k), None, given)
    if kind.rest is not None:
        after = kernel_call(kind.rest(work.m, work.n), None, given)

    def call() -> None:
        if before:
            before()
        kind.call(given)
        if after:
            after()

    return call


def kernel_call(case: Case, bundle: KernelBundle | None, t: dict) -> Callable[[], None]:
    """The launches of a bundle (by default the pointwise kernels of `case`) on these tensors."""
    bundle = bundle or bundle_of(case)
    names = {a.buffer for s in bundle.sources for a in s.args if hasattr(a, "buffer")}
    scratch = {b.name: _scratch(b) for b in bundle.scratch}
    given = {n: scratch[n] if n in scratch else t[n] for n in names}
    slots = {n: i for i, n in enumerate(given)}
    bases = [tensor.data_ptr() for tensor in given.values()]
    plans = [launch_plan(s, compile_triton(s), lambda n: Pointer(slots[n]), {})
             for s in bundle.sources]  # fmt: skip
    device = torch.cuda.current_device()

    def call(kept=given) -> None:
        stream = torch.cuda.current_stream().cuda_stream
        for plan in plans:
            plan(bases, device, stream)

    return call


def _scratch(buffer) -> torch.Tensor:
    return torch.zeros(product(buffer.shape), device="cuda", dtype=dtypes.to_torch(buffer.dtype))


@dataclass
class Recorded:
    """A CUDA graph of some calls, which hold the memory that it uses."""

    calls: list[Callable]
    graph: torch.cuda.CUDAGraph

    @classmethod
    def of(cls, calls: list[Callable]) -> Recorded:
        """Recorded after a call that may fail by itself, and replayed once."""
        stream = torch.cuda.Stream()
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            calls[0]()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for call in calls:
                call()
        graph.replay()
        torch.cuda.synchronize()
        return cls(calls, graph)


def measure(work: Work) -> None:
    """Fills in the times of all ways that work. Raises RuntimeError after a fault of the GPU."""
    count = max(2, min(MAX_SETS, -(-ROTATED_BYTES // work.bytes)))
    sets = [tensors_of(work, seed) for seed in range(count)]
    ready: dict[int, Recorded] = {}
    for number, way in enumerate(work.ways):
        if way.problem is None:
            try:
                ready[number] = _checked(work, way, sets)
            except Exception as error:
                way.problem = f"run: {type(error).__name__}: {error}"[:300]
                torch.cuda.synchronize()
    times = _in_turn({n: r.graph for n, r in ready.items()})
    if 0 in ready and work.named:
        work.ways[0].kernels = _kernels_of(library_call(work, sets[0]))
    for number, spans in times.items():
        way = work.ways[number]
        way.us = 1000 * statistics.median(spans) / count
        way.ratio = statistics.median(a / b for a, b in zip(times[0], spans))


def _checked(work: Work, way: Way, sets: list[dict]) -> Recorded:
    if way.bundle is None:
        return Recorded.of([library_call(work, t) for t in sets])
    results = [(t[n], want) for t in sets for n, want in t["want"].items()]
    for got, _ in results:
        got.fill_(float("nan"))
    made = Recorded.of([kernel_call(work.case, way.bundle, t) for t in sets])
    for got, want in results:
        error = float((got.float() - want.float()).norm() / want.float().norm())
        if not error < 1e-2:
            raise ValueError(f"its result is wrong: L2 error {error:.1e}")
    return made


def _kernels_of(call: Callable[[], None]) -> list[str]:
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        call()
        torch.cuda.synchronize()
    return [e.key for e in seen.key_averages() if e.device_time_total]


def _in_turn(graphs: dict[int, torch.cuda.CUDAGraph]) -> dict[int, list[float]]:
    """Milliseconds of each replay, by graph; the first round is not counted."""
    marks: dict[int, list] = {number: [] for number in graphs}
    for _ in range(ROUNDS + 1):
        for number, graph in graphs.items():
            pair = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
            pair[0].record()
            graph.replay()
            pair[1].record()
            marks[number].append(pair)
    torch.cuda.synchronize()
    return {n: [a.elapsed_time(b) for a, b in pairs[1:]] for n, pairs in marks.items()}


# reporting


def table_of(works: list[Work], bytes_per_us: float) -> str:
    forms = list(FORMS)
    lines = [f"{'':34}{'library':>9}" + "".join(f"{f:>13}" for f in forms) + "   best (ratio)"]
    for work in works:
        timed = [w for w in work.ways if w.us is not None]
        if not timed:
            lines.append(f"{work.label:34}  {work.problem or 'nothing was timed'}")
            continue
        cells = [_cell(timed, name) for name in ("library", *forms)]
        best = min(timed, key=lambda w: w.us)
        lines.append(f"{work.label:34}" + "".join(cells) + f"   {_best(work, best, bytes_per_us)}")
        lines += (f"{'':36}{name[:110]}" for name in work.ways[0].kernels)
    return "\n".join(lines)


def _cell(ways: list[Way], name: str) -> str:
    own = [w.us for w in ways if w.name == name]
    width = 9 if name == "library" else 13
    return f"{min(own):{width}.2f}" if own else f"{'-':>{width}}"


def _best(work: Work, way: Way, bytes_per_us: float) -> str:
    rate = f"{work.flops / way.us / 1e6:4.0f} TFLOP/s"
    share = work.bytes / way.us / bytes_per_us
    return f"{way.ratio:.2f} {rate}, {share:.2f} of copy, {_schedule(way)}"


def _schedule(way: Way) -> str:
    s = way.schedule
    if not s:
        return way.name
    tile = f"{s['block_m']}x{s['block_n']}x{s['block_k']}"
    early = " early" if s["early"] else ""
    return f"{way.name} {tile} {s['num_warps']}w {s['stages']}s /{s['splits']}{early}"


def measure_all(works: list[Work], deadline: float, report: Callable[[], None]) -> None:
    """Each work in another process, which goes on with the next; a new one after a fault."""
    context = multiprocessing.get_context("spawn")
    while any(not w.done for w in works):
        first = next(i for i, w in enumerate(works) if not w.done)
        here, there = context.Pipe(duplex=False)
        child = context.Process(target=_measure_from, args=(works, first, deadline, there))
        child.start()
        there.close()
        try:
            while True:
                number, works[number] = here.recv()
                report()
        except EOFError:
            child.join()
        if not works[first].done:
            works[first].problem, works[first].done = "its process ended", True


def _measure_from(works: list[Work], first: int, deadline: float, pipe) -> None:
    for number, work in enumerate(works[first:], first):
        work.done = True
        if time.monotonic() > deadline:
            work.problem = "no time was left"
            pipe.send((number, work))
            continue
        try:
            measure(work)
            pipe.send((number, work))
        except Exception as error:
            work.problem = f"{type(error).__name__}: {error}"[:300]
            pipe.send((number, work))
            return
        print(work.label, *(f"{_schedule(w)}: {w.us:.2f}" for w in work.ways if w.us), sep="; ",
              flush=True)  # fmt: skip
        torch.cuda.empty_cache()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="parts of labels, separated by commas")
    parser.add_argument("--forms", default=",".join(FORMS))
    parser.add_argument("--candidates", type=int, default=8, help="of each form at most")
    parser.add_argument("--seconds", type=float, default=150, help="in all")
    parser.add_argument("--unaligned", action="store_true", help="sizes that are no multiples of 8")
    parser.add_argument("--names", action="store_true", help="of the library's kernels")
    parser.add_argument("--dry", action="store_true", help="compile only; needs no GPU")
    asked = parser.parse_args()
    deadline = time.monotonic() + asked.seconds
    only = [part for part in asked.only.split(",") if part]
    device = named_target("H100") if asked.dry else target_of("cuda")
    shapes, forms = UNALIGNED if asked.unaligned else SHAPES, asked.forms.split(",")
    works = [work_of(*shape, forms, asked.candidates, device) for shape in shapes]
    works = [w for w in works if not only or any(part in w.label for part in only)]
    for work in works:
        work.named = asked.names
    arch = 10 * device.capability[0] + device.capability[1]
    compile_all(works, arch, time.monotonic() + asked.seconds * 0.6)
    print(f"compiled in {time.monotonic() - deadline + asked.seconds:.0f} s", flush=True)
    if not asked.dry:
        measure_all(works, deadline, lambda: write(works))
    print(f"wrote {write(works)}", *problems_of(works), sep="\n")
    print(table_of(works, device.dram_bytes_per_s / 1e6))


def write(works: list[Work]) -> Path:
    folder = Path(os.environ.get("OUT", "out"))
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "gpu_products.json"
    rows = [{"label": w.label, "kind": w.kind, "shape": [w.m, w.n, w.k], "bytes": w.bytes,
             "flops": w.flops, "problem": w.problem, "ways": [way.record for way in w.ways]}
            for w in works]  # fmt: skip
    path.write_text(json.dumps({"command": sys.argv[1:], "rows": rows}, indent=1) + "\n")
    return path


def problems_of(works: list[Work]) -> list[str]:
    return [f"{w.label}, {_schedule(way)}: {way.problem}" for w in works for way in w.ways
            if way.problem]  # fmt: skip


if __name__ == "__main__":
    main()
