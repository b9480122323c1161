"""Small kernels of every template for bench/sanitizer.py, from the cases of the tests: odd sizes,
so that masks matter, tiles enough for rings to wrap, and the same texts as of larger ones."""
from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
import chain_cases
import nest_gpu_cases as nests
import product_cases as products
import runs_cases
import triton_cases as rows
from attention_cases import Sizes
from attention_cases import case as attention_call
from image_cases import convolution, normalised
from product_cases import parts
from torchweld.codegen.source import KernelBundle
from torchweld.core.options import Options
from torchweld.ir.parser import parse_graph
from torchweld.passes.side_by_side import side_by_side
from torchweld.templates import registry
from torchweld.templates.gemm.hopper import generate as hopper
from torchweld.templates.gemm.hopper import schedule
from torchweld.templates.gemm.hopper.images import best_box
from torchweld.templates.gemm.schedule import ProductSchedule
from torchweld.templates.gemm.skinny import generate as stream
from torchweld.templates.gemm.skinny import schedule as ring
from triton_cases import Case, looped, reduction
from triton_run import H100, bundle_of, product_bundle

Kernels = list[tuple[Case, KernelBundle]]

TOGETHER = ProductSchedule("gluon", 128, 128, 64, 8, 4, programs=2, early=True)
IN_TURN = ProductSchedule("gluon", 64, 64, 64, 4, 5, programs=3, pingpong=True)
PAIR = ProductSchedule("gluon", 64, 64, 64, 4, 6, programs=2, pingpong=True)
RING = ProductSchedule("gluon stream", 16, 64, 64, 4, 2, 1, 3, True)


@dataclass(frozen=True, slots=True)
class Group:
    """Kernels that are run in one process. `hopper`: only on that generation."""

    made: Callable[[], Kernels]
    hopper: bool = False


def _of(generate: Callable[[Case], KernelBundle], cases: Iterable[Case]) -> Kernels:
    return [(case, generate(case)) for case in cases]


def _by_default(case: Case) -> KernelBundle:
    """Of the template and the tiles that the planner takes."""
    return registry.bundle_of(case.comp, case.buffers, H100, case.sizes)


def pointwise() -> Kernels:
    return _of(bundle_of, (
        rows.gelu_mul(9, 1001), rows.rotary(1, 33, 2, 64), rows.transposed_copy(70, 45),
        rows.checked_embedding(13, 40),
    ))  # fmt: skip


def norms() -> Kernels:
    return _of(bundle_of, (
        rows.add_layer_norm(7, 768), rows.add_rms_norm(5, 4096), rows.softmax(5, 129),
        rows.group_norm(2, 4, 3, 65), rows.layer_norm_backward(301, 257),
    ))  # fmt: skip


def losses() -> Kernels:
    """Rows that a block walks along."""
    return _of(bundle_of, (
        rows.softmax(3, 20000, dtype="bf16"), rows.cross_entropy(3, 20001),
        rows.cross_entropy_backward(3, 20001),
    ))  # fmt: skip


def splits() -> Kernels:
    """In shares, which a second kernel adds up, or atomics."""
    monoids = ("sum", "argmax", "welford", "logsumexp")
    return _of(bundle_of, (
        *(looped(reduction(m, 3, 1500), 64, 4) for m in monoids),
        *(reduction(m, 1501, 200, dim=0) for m in ("sum", "welford")),
    ))  # fmt: skip


def scans() -> Kernels:
    return _of(bundle_of, (
        rows.cumulative("sum", 3, 5003), rows.cumulative("sum", 3, 5003, backwards=True),
        rows.cumulative("max", 3, 100),
    ))  # fmt: skip


def triton_products() -> Kernels:
    return _of(product_bundle, (
        products.bias_gelu(70, 136, 72), products.batched(3, 70, 96, 40, "f16"),
        products.linear(129, 99, 104, "f32"), products.gated(70, 136, 72),
    ))  # fmt: skip


def hopper_products() -> Kernels:
    return [
        *(_tiled(products.bias_gelu(255, 264, 136), t) for t in (TOGETHER, IN_TURN)),
        _tiled(products.bias_residual(257, 136, 328), IN_TURN),
        _tiled(products.linear(152, 200, 72, "f16", "km", "kn"), IN_TURN),
        _tiled(products.gated(250, 200, 136, "f16"), PAIR),
    ]


def _tiled(case: Case, tiles: ProductSchedule) -> tuple[Case, KernelBundle]:
    assert schedule.valid(tiles, *parts(case)), case.name
    return case, hopper.generate(case.comp, case.buffers, tiles, case.sizes)


def streams() -> Kernels:
    """Products of few rows."""
    cases = (products.linear(16, 136, 1000), products.bias_gelu(11, 264, 768),
             products.rotary(7, (5, 1, 2), 64, 520))  # fmt: skip
    assert all(ring.valid(RING, *parts(c)) for c in cases)
    return _of(lambda c: stream.generate(c.comp, c.buffers, RING, c.sizes), cases)


def column_sums() -> Kernels:
    """Of gradients, beside the product that makes them."""
    cases = (products.summed(150, 136, 72), products.gelu_backward(150, 136, 72))
    return [*_of(product_bundle, cases), *(_tiled(c, TOGETHER) for c in cases)]


def attention() -> Kernels:
    """Torch's own call: one query and a prompt."""
    return _of(_by_default, (
        attention_call(Sizes(2, 2, 4, 1, 333, 64, 64)),
        attention_call(Sizes(1, 3, 1, 100, 100, 64, 64), causal=True),
    ))  # fmt: skip


def nests_triton() -> Kernels:
    z = nests.Sizes(1, 2, 1, 70, 70, 16, 16)
    return _of(nests.generated, (
        nests.tiled(nests.forward(z, nests.CAUSAL, "f16", saved=True)),
        nests.tiled(nests.forward(z, nests.CAUSAL, "f16"), 32, 16, 3),
        nests.tiled(nests.queries_gradient(z, nests.CAUSAL, "f16")),
        nests.tiled(nests.keys_gradient(z, nests.CAUSAL, "f16")),
        nests.tiled(nests.bias_gradient(nests.Sizes(2, 1, 2, 40, 40, 24, 16), nests.BIAS, "f16")),
    ))  # fmt: skip


def nests_hopper() -> Kernels:
    z = nests.Sizes(1, 2, 1, 150, 210, 64, 64)
    return _of(nests.generated, (
        nests.on_hopper(nests.forward(z, nests.CAUSAL, saved=True), stages=3),
        nests.on_hopper(nests.queries_gradient(z, nests.CAUSAL), keys=64, stages=3),
        nests.on_hopper(nests.keys_gradient(z, nests.CAUSAL), keys=64, stages=3),
    ))  # fmt: skip


def chains() -> Kernels:
    return _of(lambda c: chain_cases.made(c, H100), (
        chain_cases.layers(150, (3, 64, 64, 4), transposed=True, keep=True),
        chain_cases.gated(150, (40, 64, 24)), chain_cases.backward(150, (33, 64, 20)),
    ))  # fmt: skip


def convolutions() -> Kernels:
    cases = (convolution(2, 40, (17, 13), 72, (3, 3), padding=1),
             normalised(2, 64, (14, 14), 72, (3, 3), stride=2, padding=1))  # fmt: skip
    return [_tiled(c, replace(IN_TURN, box=_box(c))) for c in cases]


def _box(case: Case) -> tuple[int, ...]:
    """Of the image, as one tile has it."""
    accesses, found = parts(case)
    return best_box([accesses.comp.extent(a) for a in found.rows], IN_TURN.block_m)


def scatters() -> Kernels:
    """By atomics."""
    body = "%0 = load at[i] : i64\n%1 = load x[i, j] : f32\nstore.add y[%0, j] %1 init 0.0"
    at = torch.randint(0, 7, (301,), generator=torch.Generator().manual_seed(0))
    return _of(bundle_of, (rows.case(
        "scatter", "i:301, j:40", body, {"at": at},
        at=("i64", 301), x=("f32", 301, 40), y=("f32", 7, 40),
    ),))  # fmt: skip


def sorted_sums() -> Kernels:
    """Of rows whose keys are sorted."""
    return _of(runs_cases.bundle_of, runs_cases.ALL[:6])


def tensor_lists() -> Kernels:
    """An optimiser's step: x = x - g * rate, many x in one launch."""
    lengths = (512, 1000, 4096)
    lines, inputs = ["buffer rate : f32[] strides [] on cuda:0"], ["rate"]
    lines += [f"buffer {b}{k} : f32[{n}] strides [1] on cuda:0"
              for k, n in enumerate(lengths) for b in "xg"]  # fmt: skip
    inputs += [f"{b}{k}" for k in range(len(lengths)) for b in "xg"]
    lines.append(f"input {', '.join(inputs)}")
    lines += [f"""comp step{k} [i:{n}] {{
        %0 = load x{k}[i] : f32
        %1 = load g{k}[i] : f32
        %2 = load rate[] : f32
        %3 = mul %1 %2 : f32
        %4 = sub %0 %3 : f32
        store x{k}[i] %4
        }}""" for k, n in enumerate(lengths)]  # fmt: skip
    text = "\n".join(["graph g {", *lines, "output ", "}"])
    graph = side_by_side(parse_graph(text), Options())
    return _of(_by_default, [Case("step", n, graph.buffers) for n in graph.nodes])


GROUPS = {
    "pointwise": Group(pointwise),
    "norms": Group(norms),
    "losses": Group(losses),
    "split reductions": Group(splits),
    "scans": Group(scans),
    "products, Triton": Group(triton_products),
    "products, Gluon": Group(hopper_products, hopper=True),
    "products of few rows": Group(streams, hopper=True),
    "column sums": Group(column_sums, hopper=True),
    "attention": Group(attention, hopper=True),
    "score nests, Triton": Group(nests_triton),
    "score nests, Gluon": Group(nests_hopper, hopper=True),
    "chains": Group(chains),
    "convolutions": Group(convolutions, hopper=True),
    "scatters by atomics": Group(scatters),
    "sums of sorted rows": Group(sorted_sums),
    "tensor lists": Group(tensor_lists),
}
