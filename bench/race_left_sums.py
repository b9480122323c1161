"""Sums over the left factor of a product in Triton's pipelined loops on Hopper: which ways to write
them are right, and what they take.

    python bench/race_left_sums.py [--launches 20] [--compile]

Triton stages a tile in a ring of `stages` slots, one more than are under way, if only an
asynchronous dot reads it; in one of `stages - 1` if anything else does too, since what is loaded
into registers is read at once. A dot that is still pending then reads the slot that the next copy
is written to: Triton (3.6.0 and 3.7.1) leaves one pending all the same. The column `rings` has the
slots of each tile, in the order of the program, and `pending` how many dots a step leaves
unfinished: a ring shorter than the longest, of a tile that a pending dot reads, is a race.

Each way is launched over all multiprocessors, again and again; `wrong` counts launches whose
products or sums are not those of torch. --compile: no GPU, the rings alone.
"""
from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from torchweld.codegen.source import BufferArg, KernelSource
from torchweld.runtime.triton_compile import compile_source
from triton_run import compile_in_processes

ROWS, COLUMNS, DEPTH = 4096, 2048, 1024
TILES = ((128, 128, 64, 8), (64, 64, 64, 4))  # rows, columns, depth, warps
STAGES = (1, 2, 3, 4)
HEAD = """
import triton
import triton.language as tl

@triton.jit
def product(p_x, p_w, p_y, p_s, K: tl.constexpr, N: tl.constexpr, BM: tl.constexpr,
            BN: tl.constexpr, BK: tl.constexpr, STAGES: tl.constexpr):
    r = tl.program_id(0) * BM + tl.arange(0, BM)[:, None]
    c = tl.program_id(1) * BN + tl.arange(0, BN)[None, :]
    lanes = tl.arange(0, BK)
    acc = tl.zeros([BM, BN], tl.float32)
    sums = tl.zeros([BM, WIDTH], tl.float32)
    for k in tl.range(0, K, BK, num_stages=STAGES):
        left = p_x + r * K + k + lanes[None, :]
        a = tl.load(left)
        b = tl.load(p_w + c * K + k + lanes[:, None])
"""
TAIL = """
    tl.store(p_y + r * N + c, acc)
    if tl.program_id(1) == 0:
        tl.store(p_s + r, tl.sum(sums, axis=1, keep_dims=True))
"""
DOT = "acc = tl.dot(a, b, acc)"
IDENTITY = 'tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [{}], {}, True, {})'


@dataclass(frozen=True)
class Way:
    """`step`: lines of the loop, after the loads; `after` it. `sums`: of x [rows, depth] and the
    first columns of w's product, what is to come out. `width`: of the sums' accumulator."""

    step: tuple[str, ...]
    sums: Callable = lambda x, w, columns: x.float().square().sum(1)
    after: tuple[str, ...] = ()
    width: str = "BK"


def _plain(x, w, columns):
    return x.float().sum(1) * 16  # in each of 16 columns of ones


def _computed(x, w, columns):
    computed = (x.float() * 2 + 1).to(x.dtype).float()
    return (computed @ w[:columns].float().T).sum(1)


SQUARES = "sums += a.to(tl.float32) * a.to(tl.float32)"
AGAIN = "a = tl.load(left, eviction_policy='evict_last')"
ELEMENT = "(a.to(tl.float32) * 2 + 1).to(tl.bfloat16)"
WAYS = {
    "no sums": Way((DOT,), sums=lambda x, w, columns: torch.zeros(len(x), device=x.device)),
    "both read one tile": Way((DOT, SQUARES)),
    "sums before the dot": Way((SQUARES, DOT)),
    "a second load": Way((DOT, AGAIN, SQUARES)),
    "the dot is awaited": Way((DOT, "acc = " + IDENTITY.format("acc", "tl.float32", 1), SQUARES)),
    "left from registers": Way(
        ("a = " + IDENTITY.format("a", "tl.bfloat16", 2), DOT, SQUARES)),
    "a loop of its own": Way((DOT,), after=(
        "for k in tl.range(0, K, BK):", "    a = tl.load(p_x + r * K + k + lanes[None, :])",
        "    " + SQUARES)),
    "a dot with ones": Way(
        (DOT, "sums = tl.dot(a, tl.full([BK, 16], 1.0, tl.bfloat16), sums)"), _plain, width="16"),
    "computed dot behind": Way((DOT, f"sums = tl.dot({ELEMENT}, b, sums)"), _computed, width="BN"),
    "computed dot in front": Way(
        (f"sums = tl.dot({ELEMENT}, b, sums)", DOT), _computed, width="BN"),
}


def source_of(way: Way, tile: tuple[int, int, int, int], stages: int) -> KernelSource:
    rows, columns, depth, warps = tile
    lines = [*(" " * 8 + line for line in way.step), *(" " * 4 + line for line in way.after)]
    text = HEAD.replace("WIDTH", way.width) + "\n".join(lines) + TAIL
    constants = {"K": DEPTH, "N": COLUMNS, "BM": rows, "BN": columns, "BK": depth, "STAGES": stages}
    args = tuple(map(BufferArg, "xwys"))
    return KernelSource("triton", "product", text, args, (), tuple(constants.items()),
                        ("*bf16", "*bf16", "*fp32", "*fp32"), warps, stages)


def rings(ttgir: str) -> tuple[str, str]:
    """The slots of each staged tile, and the dots that are left pending."""
    slots = re.findall(r"local_alloc : \(\) -> !ttg.memdesc<(\d+)x\d+x\d+x", ttgir)
    pending = re.findall(r"warp_group_dot_wait.*pendings = (\d+)", ttgir)
    return "/".join(slots) or "-", "/".join(pending[:-1]) or "-"


def wrong(launch, found, wanted, launches: int) -> tuple[int, int]:
    """Of so many launches: in how many products and sums differ from those wanted."""
    counts = [0, 0]
    for _ in range(launches):
        for t in found:
            t.fill_(float("nan"))
        launch()
        for n, (t, right) in enumerate(zip(found, wanted)):
            scale = right.abs().max() + 1
            counts[n] += not bool(((t - right).abs() <= 1e-3 * scale).all())
    return counts[0], counts[1]


def microseconds(launch, repeats: int = 20) -> float:
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    first.record()
    for _ in range(repeats):
        launch()
    last.record()
    last.synchronize()
    return first.elapsed_time(last) * 1e3 / repeats


def on_gpu(launcher, way: Way, tile: tuple[int, ...], x, w, product, launches: int) -> str:
    """wrong products, wrong sums, time"""
    y, s = torch.empty_like(product), torch.empty(ROWS, device="cuda")
    values = [t.data_ptr() for t in (x, w, y, s)]
    grid, stream = (ROWS // tile[0], COLUMNS // tile[1], 1), torch.cuda.current_stream().cuda_stream

    def launch() -> None:
        launcher(grid, stream, values)

    sums = way.sums(x, w, tile[1])
    products, others = wrong(launch, (y, s), (product, sums), launches)
    return f"{products:9}{others:7}{microseconds(launch):9.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--launches", type=int, default=20)
    parser.add_argument("--compile", action="store_true", help="for sm_90, without a GPU")
    asked = parser.parse_args()
    made = {(n, t, s): source_of(w, t, s) for n, w in WAYS.items() for t in TILES for s in STAGES}
    if not asked.compile:
        torch.manual_seed(0)
        torch.backends.cuda.matmul.allow_tf32 = False
        x, w = (torch.randn(n, DEPTH, device="cuda").bfloat16() for n in (ROWS, COLUMNS))
        launchers, product = compile_in_processes(made.values()), x.float() @ w.float().T
    print(f"{'way':24}{'tile':14}stages  rings    pending    wrong: y      s       us")
    for (name, tile, stages), source in made.items():
        binary = compile_source(source, 90) if asked.compile else launchers[source].binary()
        slots, pending = rings(binary.asm["ttgir"])
        line = f"{name:24}{'x'.join(map(str, tile[:3])):14}{stages:4}    {slots:8} {pending:8}"
        if not asked.compile:
            line += on_gpu(launchers[source], WAYS[name], tile, x, w, product, asked.launches)
        print(line, flush=True)


if __name__ == "__main__":
    main()
