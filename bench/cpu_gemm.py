"""Float32 products on the CPU: MKL as eager calls it, oneDNN, and torchweld, paired in one process.

python bench/cpu_gemm.py [--rounds 15] [--threads 1,2] [--only 512x768x768] [--gelu] [--narrow]

Each round times every way once, in turn. The table gives GFLOP/s (of the product alone) at the
median time, and the median over rounds of the paired ratio of MKL's time to torchweld's. `x @ w.T`
is nn.Linear's layout of the weight. With --gelu the result goes through gelu: eager runs it as a
kernel of its own behind MKL. oneDNN's weight is packed beforehand, or by each call. --narrow: in
bfloat16, where eager itself calls oneDNN.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.nn import functional as F

import torchweld

ONEDNN = torch.ops.mkldnn
SHAPES = (
    (128, 768, 768), (128, 768, 3072), (128, 3072, 768), (128, 3072, 3072), (512, 512, 512),
    (512, 768, 768), (512, 1024, 1024), (512, 768, 3072), (512, 3072, 768), (1024, 768, 768),
    (1024, 768, 3072), (1024, 3072, 768), (128, 768, 50257),
)  # fmt: skip
WAYS = ("MKL", "oneDNN", "oneDNN packed", "torchweld")


@dataclass(frozen=True)
class Case:
    """x [rows, depth] times a weight [columns, depth], or its transpose, plus a bias."""

    rows: int
    depth: int
    columns: int
    transposed: bool
    gelu: bool
    dtype: torch.dtype

    @property
    def gflop(self) -> float:
        return 2e-9 * self.rows * self.depth * self.columns

    def eager(self, x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        y = F.linear(x, w, b) if self.transposed else torch.addmm(b, x, w)
        return F.gelu(y) if self.gelu else y

    def inputs(self) -> tuple[torch.Tensor, ...]:
        torch.manual_seed(0)
        x, w = torch.randn(self.rows, self.depth), torch.randn(self.columns, self.depth)
        w = (w / self.depth**0.5).to(self.dtype)
        return x.to(self.dtype), w if self.transposed else w.t().contiguous(), w[:, 0].contiguous()


def ways(case: Case) -> dict[str, Callable[[], torch.Tensor]]:
    x, w, b = case.inputs()
    torch._dynamo.reset()
    fused = torchweld.fuse(case.eager, dynamic=False)
    rows = w if case.transposed else w.t()
    packed = ONEDNN._reorder_linear_weight(rows.contiguous(), case.rows)
    after = ("gelu", [], "none") if case.gelu else ("none", [], "")
    return {
        "MKL": lambda: case.eager(x, w, b),
        "oneDNN": lambda: ONEDNN._linear_pointwise(x, rows, b, *after),
        "oneDNN packed": lambda: ONEDNN._linear_pointwise(x, packed, b, *after),
        "torchweld": lambda: fused(x, w, b),
    }


def seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def measured(case: Case, rounds: int) -> str:
    """One row of the table."""
    runs = ways(case)
    for run in (*runs.values(), *runs.values()):
        run()
    taken = [{name: seconds(run) for name, run in runs.items()} for _ in range(rounds)]
    rates = (case.gflop / statistics.median(t[name] for t in taken) for name in WAYS)
    ratio = statistics.median(t["MKL"] / t["torchweld"] for t in taken)
    threads = torch.get_num_threads()
    shape = f"{case.rows} x {case.depth} x {case.columns}"
    layout = "x @ w.T" if case.transposed else "x @ w"
    cells = [shape, layout, str(threads), *(f"{r:.0f}" for r in rates), f"{ratio:.2f}"]
    return f"| {' | '.join(cells)} |"


def processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((s.partition(": ")[2] for s in lines if s.startswith("model name")), "unknown")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", default=f"1,{torch.get_num_threads()}")
    parser.add_argument("--only", default="", help="shapes rows x depth x columns, as 512x768x768")
    parser.add_argument("--gelu", action="store_true", help="gelu behind the bias")
    parser.add_argument("--narrow", action="store_true", help="bfloat16")
    asked = parser.parse_args()
    only = [tuple(map(int, s.split("x"))) for s in asked.only.split(",") if s]
    print(f"{processor()}, torch {torch.__version__}, GFLOP/s\n")
    print(f"| rows x depth x columns | layout | threads | {' | '.join(WAYS)} | torchweld / MKL |")
    print("|---|---|---|" + "---|" * (len(WAYS) + 1))
    dtype = torch.bfloat16 if asked.narrow else torch.float32
    for threads in dict.fromkeys(map(int, asked.threads.split(","))):
        torch.set_num_threads(threads)
        for shape in only or SHAPES:
            for transposed in (True, False):
                with torch.no_grad():
                    print(measured(Case(*shape, transposed, asked.gelu, dtype), asked.rounds),
                          flush=True)


if __name__ == "__main__":
    main()
