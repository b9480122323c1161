"""Attention written by hand, paired with the library's call and torch.compile in one process.

python bench/attention.py [--device cuda] [--dtype bfloat16] [--only causal,window]
                          [--sizes 2,4,1024,64] [--backward] [--kernels] [--seconds 4]

Each way runs once a round, in turn. The table gives the median milliseconds of a call, the median
over rounds of the paired ratio of the best other way to torchweld, and megabytes that a call
allocates at most. `library` is scaled_dot_product_attention with the same mask, made in the call.
`flex` is flex_attention, compiled (GPU only). A backward is timed with its forward.
With `--kernels`, only what a GPU's kernels take of a call is told.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.autograd import DeviceType
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile

import torchweld
from torchweld.observe.measure.memory import added_bytes
from torchweld.observe.measure.paired import time_paired

Tensor = torch.Tensor
WINDOW, CAP = 8, 50.0  # a window is so much of the length


@dataclass(frozen=True)
class Case:
    """`mask(q, row, column)`: what is added to scaled scores, or which of them count; None: all.
    `score(s)`: what else is done to them, which the library cannot. `queries`: 1 for decoding.
    `learned(heads, length)`: the shape of one more input, and `weights(s, learned)`: of scores with
    it."""

    mask: Callable[[Tensor, Tensor, Tensor], Tensor] | None = None
    score: Callable[[Tensor], Tensor] | None = None
    softmax: bool = True
    queries: int | None = None
    learned: Callable[[int, int], tuple[int, ...]] | None = None
    weights: Callable[[Tensor, Tensor], Tensor] | None = None

    def hand(self, q: Tensor, k: Tensor, v: Tensor, *learned: Tensor) -> Tensor:
        s = (q @ k.transpose(-2, -1)) * q.shape[-1] ** -0.5
        s = s if self.score is None else self.score(s)
        if self.mask is not None:
            m = self.made(q, k)
            s = s.masked_fill(~m, -math.inf) if m.dtype == torch.bool else s + m
        if self.weights is not None:
            return self.weights(s, *learned) @ v
        return (s.softmax(-1) if self.softmax else s.sigmoid()) @ v

    def library(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if self.mask is causal:
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)
        mask = None if self.mask is None else self.made(q, k)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)

    def made(self, q: Tensor, k: Tensor) -> Tensor:
        row, column = (torch.arange(t.shape[-2], device=q.device) for t in (q, k))
        return self.mask(q, row[:, None], column[None])


def causal(q: Tensor, row: Tensor, column: Tensor) -> Tensor:
    return column <= row


def window(q: Tensor, row: Tensor, column: Tensor) -> Tensor:
    return (column <= row) & (row - column < q.shape[-2] // WINDOW)


def alibi(q: Tensor, row: Tensor, column: Tensor) -> Tensor:
    heads = torch.arange(1, q.shape[1] + 1, device=q.device)
    slope = (2.0 ** (-8.0 * heads / q.shape[1])).to(q.dtype)[:, None, None]
    return ((column - row).to(q.dtype) * slope).masked_fill(column > row, -math.inf)


def softcap(s: Tensor) -> Tensor:
    return CAP * torch.tanh(s / CAP)


def with_sinks(s: Tensor, sinks: Tensor) -> Tensor:
    """As GPT-OSS in transformers has it."""
    every = torch.cat([s, sinks.reshape(1, -1, 1, 1).expand(*s.shape[:3], 1)], -1)
    every = every - every.max(dim=-1, keepdim=True).values
    return every.softmax(-1)[..., :-1]


def with_bias(s: Tensor, bias: Tensor) -> Tensor:
    return (s + bias).softmax(-1)


CASES = {
    "plain": Case(),
    "causal": Case(causal),
    "window": Case(window),
    "alibi": Case(alibi),
    "softcap": Case(causal, softcap),
    "sigmoid": Case(causal, softmax=False),
    "decode": Case(queries=1),
    "sinks": Case(causal, learned=lambda heads, n: (heads,), weights=with_sinks),
    "bias": Case(learned=lambda heads, n: (heads, n, n), weights=with_bias),
}


def flex(name: str, sizes: tuple[int, ...], device: str) -> Callable | None:
    """The same by flex_attention; None where it does not apply."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    (_, heads, length, _), case = sizes, CASES[name]
    if device == "cpu" or not case.softmax or case.queries or case.learned:
        return None
    kept = {
        "plain": None,
        "window": lambda b, h, i, j: (j <= i) & (i - j < length // WINDOW),
    }.get(name, lambda b, h, i, j: j <= i)
    score = {
        "alibi": lambda s, b, h, i, j: s + (j - i) * torch.exp2(-8.0 * (h + 1) / heads),
        "softcap": lambda s, b, h, i, j: softcap(s),
    }.get(name)
    blocks = kept and create_block_mask(kept, None, None, length, length, device=device)
    run = torch.compile(flex_attention, dynamic=False)
    return lambda q, k, v: run(q, k, v, score_mod=score, block_mask=blocks)


def ways(name: str, sizes: tuple[int, ...], device: str) -> dict[str, Callable]:
    case = CASES[name]
    torch._dynamo.reset()
    found = {"eager": case.hand, "compile": torch.compile(case.hand, dynamic=False)}
    if case.score is None and case.softmax and case.learned is None:
        found["library"] = case.library
    if (other := flex(name, sizes, device)) is not None:
        found["flex"] = other
    return found | {"torchweld": torchweld.fuse(case.hand, dynamic=False)}


def called(way: Callable, inputs: tuple[Tensor, ...], backward: bool) -> Callable[[], object]:
    if not backward:
        return lambda: way(*inputs)
    inputs = tuple(t.clone().requires_grad_() for t in inputs)
    gradient = torch.randn_like(inputs[0])
    return lambda: torch.autograd.grad(way(*inputs), inputs, gradient)


def kernels_us(call: Callable[[], object], steps: int = 5) -> float:
    """Microseconds of a GPU's kernels in one call, without what the host takes."""
    call()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as trace:
        for _ in range(steps):
            call()
        torch.cuda.synchronize()
    on_device = (e for e in trace.events() if e.device_type == DeviceType.CUDA)
    return sum(e.device_time_total for e in on_device) / steps


def measure(name: str, sizes: tuple[int, ...], args: argparse.Namespace) -> None:
    torch.manual_seed(0)
    batch, heads, length, width = sizes
    rows = (CASES[name].queries or length, length, length)
    dtype = getattr(torch, args.dtype)
    shapes = [(batch, heads, n, width) for n in rows]
    shapes += [CASES[name].learned(heads, length)] if CASES[name].learned else []
    inputs = tuple(torch.randn(s, device=args.device, dtype=dtype) for s in shapes)
    with torch.set_grad_enabled(args.backward):
        made = ways(name, sizes, args.device)
        calls = {w: called(f, inputs, args.backward) for w, f in made.items()}
        for call in calls.values():
            call(), call()
        if args.kernels:
            told = "; ".join(f"{w} {kernels_us(c):.0f} us" for w, c in calls.items())
            print(f"{name} {sizes} {args.dtype}, kernels alone: {told}", flush=True)
            return
        paired = time_paired(calls, args.device, args.seconds)
        peaks = {w: added_bytes(call, args.device) / 1e6 for w, call in calls.items()}
    best = min((w for w in calls if w != "torchweld"), key=paired.median_ms)
    pairs = zip(paired.times_ms[best], paired.times_ms["torchweld"])
    ratio = statistics.median(a / b for a, b in pairs)
    told = "; ".join(f"{w} {paired.median_ms(w):.3g} ms {peaks[w]:.3g} MB" for w in calls)
    print(f"{name} b{batch} h{heads} s{length} d{width} {args.dtype}: {told}; "
          f"{ratio:.2f}x of {best}", flush=True)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--only", default=",".join(CASES), help=f"of {', '.join(CASES)}")
    parser.add_argument(
        "--sizes", nargs="+", default=["2,4,1024,64"], help="batch,heads,length,width")
    parser.add_argument("--backward", action="store_true")
    parser.add_argument("--kernels", action="store_true", help="a GPU's, from a trace")
    parser.add_argument("--seconds", type=float, default=4.0, help="of timing a case")
    args = parser.parse_args()
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads")
    for sizes in args.sizes:
        for name in args.only.split(","):
            measure(name, tuple(map(int, sizes.split(","))), args)


if __name__ == "__main__":
    main()
