"""Convolutions in groups in 16 bits on a GPU, without what follows them: cuDNN's call, with
channels first and last, against our kernels, with groups as they are and joined to wider ones
(passes/narrow_groups.py). Results are compared.

    python bench/grouped.py [--only "1x1"] [--candidates 2] [--seconds 50] [--dry]

A number is microseconds of a call in a CUDA graph of several, in turn; `32: 128x64` is our kernel
with 32 channels to a group in tiles of 128 x 64. The copy of a weight to wider groups is not in it.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from gpu_products import Recorded, Way, _in_turn, _way, compile_all, kernel_call
from image_cases import call
from product_cases import parts
from torchweld.ir.nodes import Graph
from torchweld.passes.narrow_groups import _widened
from torchweld.targets.find import named_target
from torchweld.templates.conv.comp import call_of, convolution_comp
from torchweld.templates.gemm.hopper import generate as gluon
from torchweld.templates.gemm.hopper import schedule as gluon_schedule
from torchweld.templates.gemm.price import Prices
from torchweld.templates.gemm.triton import generate as triton
from torchweld.templates.gemm.triton import schedule as triton_schedule
from triton_cases import Case

# batch, channels, side, window, step, groups
LAYERS = {
    "1x1 18 of 32, 14": (16, 576, 14, 1, 1, 18),
    "1x1 36 of 32, 7": (16, 1152, 7, 1, 1, 36),
    "1x1 24 of 16, 28": (16, 384, 28, 1, 1, 24),
    "1x1 4 of 64, 56": (16, 256, 56, 1, 1, 4),
    "3x3 32 of 4, 56": (16, 128, 56, 3, 1, 32),
    "3x3 32 of 8, 28": (16, 256, 28, 3, 1, 32),
    "3x3 32 of 16, 14": (16, 512, 14, 3, 1, 32),
    "3x3 32 of 32, 7": (16, 1024, 7, 3, 1, 32),
    "3x3 32 of 8, 56, step 2": (16, 256, 56, 3, 2, 32),
    "3x3 32 of 16, 28, step 2": (16, 512, 28, 3, 2, 32),
    "3x3 32 of 32, 14, step 2": (16, 1024, 14, 3, 2, 32),
    "3x3 5 of 24, 28": (16, 120, 28, 3, 1, 5),
    "3x3 9 of 48, 14": (16, 432, 14, 3, 1, 9),
    "3x3 4 of 64, 28": (16, 256, 28, 3, 1, 4),
    "3x3 6 of 20, 75": (32, 120, 75, 3, 1, 6),
    "3x3 3 of 40, 75": (32, 120, 75, 3, 1, 3),
    "3x3 3 of 48, 75": (32, 144, 75, 3, 1, 3),
    "3x3 2 of 56, 75": (32, 112, 75, 3, 1, 2),
    "3x3 3 of 64, 75": (32, 192, 75, 3, 1, 3),
    "3x3 8 of 56, 28": (32, 448, 28, 3, 1, 8),
}
REPEATS = 10


@dataclass
class Layer:
    """`cases`, `kinds`: of each way. `price_us`: of the library's call, as predicted."""

    name: str
    case: Case
    ways: list[Way]
    cases: list[Case]
    kinds: list[str]
    price_us: float


def layer_of(name: str, most: int) -> Layer:
    batch, channels, side, window, step, groups = LAYERS[name]
    node, buffers = call(batch, channels, (side, side), channels, (window, window), step,
                         window // 2, groups=groups)  # fmt: skip
    graph = Graph("layer", (), buffers, (node,), ("x", "w"), (buffers["y"].view,))
    table = named_target("H100")
    found = [(call_of(node).channels, Case(name, convolution_comp(node, buffers), buffers))]
    for count in _counts(groups, call_of(node).channels):
        _, weight, wide = _widened(node, call_of(node), graph, count)
        every = {**buffers, weight.name: weight}
        found.append((weight.shape[1], Case(name, convolution_comp(wide, every), every)))
    ways, cases, kinds = [], [], []
    for width, case in found:
        forms = ((gluon_schedule, gluon), (triton_schedule, triton))
        for rules, template in forms if window == 1 else forms[:1]:
            accesses, contraction = parts(case)
            if rules.supports(accesses, contraction, table):
                continue
            for s in list(rules.candidates(accesses, contraction, table, {}))[:most]:
                ways.append(_way(case, s, template.generate))
                cases.append(case)
                kinds.append(f"{width}: {s.form[0]} {s.block_m}x{s.block_n}x{s.block_k}")
    return Layer(name, found[0][1], ways, cases, kinds, Prices(graph, table).call_s(node) * 1e6)


def _counts(groups: int, channels: int) -> list[int]:
    """How many groups may become one: 16 channels to 128."""
    every = (n for n in range(2, groups + 1) if groups % n == 0)
    return [n for n in every if 16 <= n * channels <= 128]


def tensors(case: Case) -> dict[str, torch.Tensor]:
    made = {}
    for name, b in case.buffers.items():
        memory = torch.randn(b.shape[0] * b.strides[0], device="cuda", dtype=torch.bfloat16)
        made[name] = memory.as_strided(b.shape, b.strides)
    return made


def library_calls(layer: Layer) -> dict[str, Callable[[], object]]:
    *_, window, step, groups = LAYERS[layer.name]
    made = {}
    for name, how in (("first", torch.contiguous_format), ("last", torch.channels_last)):
        t = tensors(layer.case)
        x, w = (t[n].contiguous(memory_format=how) for n in ("x", "w"))
        made[name] = lambda x=x, w=w: torch.conv2d(x, w, None, step, window // 2, 1, groups)
    return made


def own_call(way: Way, case: Case, layer: Layer) -> Callable[[], None]:
    """A call of our kernel, whose result has been compared with cuDNN's."""
    *_, window, step, groups = LAYERS[layer.name]
    t = tensors(case)
    wide, groups = t[case.comp.reads[1]], groups * layer.case.buffers["w"].shape[1]
    run = kernel_call(case, way.bundle, t)
    t["y"].fill_(float("nan"))
    run()
    want = torch.conv2d(t["x"], wide, None, step, window // 2, 1, groups // wide.shape[1]).float()
    error = float((t["y"].float() - want).norm() / want.norm())
    if not error < 5e-3:
        raise ValueError(f"wrong: L2 error {error:.1e}")
    return run


@torch.no_grad()
def line(layer: Layer) -> str:
    calls, failed = library_calls(layer), [w.problem[:70] for w in layer.ways if w.problem]
    kept = {kind: Recorded.of([one] * REPEATS) for kind, one in calls.items()}
    for number, (way, case) in enumerate(zip(layer.ways, layer.cases)):
        try:
            one = own_call(way, case, layer) if way.bundle else None
            if one:
                kept[number] = Recorded.of([one] * REPEATS)
        except Exception as error:
            failed.append(f"{layer.kinds[number]}: {error}"[:70])
    times = _in_turn({kind: recorded.graph for kind, recorded in kept.items()})
    us = {k: 1000 * statistics.median(spans) / REPEATS for k, spans in times.items()}
    best: dict[str, str] = {}
    for number in sorted((n for n in us if isinstance(n, int)), key=us.__getitem__):
        kind = layer.kinds[number]
        best.setdefault(kind.split(":")[0] + kind.split()[1], f"{kind} {us[number]:.1f}")
    cudnn = f"{us['first']:.1f} | {us['last']:.1f} ({layer.price_us:.1f})"
    return f"| {layer.name} | {cudnn} | {' | '.join(best.values())} | {'; '.join(failed[:2])}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="")
    parser.add_argument("--candidates", type=int, default=2, help="of each form and width")
    parser.add_argument("--seconds", type=float, default=50)
    parser.add_argument("--dry", action="store_true", help="compile only; needs no GPU")
    args = parser.parse_args()
    deadline = time.monotonic() + args.seconds
    layers = [layer_of(name, args.candidates) for name in LAYERS if args.only in name]
    compile_all(layers, 90, deadline)
    if not args.dry:
        print(f"torch {torch.__version__}, {torch.cuda.get_device_name()}, bfloat16")
    print("| layer | cuDNN, channels first | last (predicted) | ours, by channels of a group |")
    for layer in layers:
        if args.dry:
            for way, kind in zip(layer.ways, layer.kinds):
                print(layer.name, kind, way.problem or way.resources)
        elif time.monotonic() < deadline + 15:
            print(line(layer), flush=True)


if __name__ == "__main__":
    main()
