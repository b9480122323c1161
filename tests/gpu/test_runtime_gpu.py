"""Programs on a GPU: launches, CUDA graphs, memory; hand-written Triton kernels against eager."""

from __future__ import annotations

import gc
import threading

import pytest
import torch

import torchweld
from chains import Record, affine_comp, chain, chain_steps, chain_text
from torchweld.api import records
from torchweld.codegen.source import BufferArg, GridDim, KernelBundle, KernelSource, SizeArg
from torchweld.core import dtypes
from torchweld.core.options import Options
from torchweld.ir.nodes import Buffer
from torchweld.ir.parser import parse_graph
from torchweld.ir.size import symbol
from torchweld.runtime.graphs import GraphedProgram
from torchweld.runtime.load import load
from torchweld.runtime.memory import POOL, Arena

S = symbol("s0")
AFFINE = """
import triton
import triton.language as tl

@triton.jit
def affine(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + i, mask=i < n)
    tl.store(y + i, v * 2 + 1, mask=i < n)
"""
BLOCK = 256


def kernel(source: str, target: str, size) -> KernelSource:
    args = (BufferArg(source), BufferArg(target), SizeArg(size))
    grid, constants = (GridDim(size, BLOCK),), (("BLOCK", BLOCK),)
    return KernelSource(
        "triton", "affine", AFFINE, args, grid, constants, ("*fp32", "*fp32", "i64")
    )


def chain_graph(length: int, size=S):
    steps = chain_steps(length)
    bundles = {c: KernelBundle(c, (kernel(a, b, size),)) for c, a, b in steps}
    return parse_graph(chain_text(length, "cuda:0", size)), bundles


def randn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device="cuda:0")


def test_varying_sizes_are_launched_one_by_one_until_they_come_back():
    record = Record()
    graph, bundles = chain_graph(4)
    program = load(graph, bundles, {}, Options(), record=record)
    for times in range(5):
        for size in (8, 0, 1, 255, 256, 257, 100_003):
            x = randn(size)
            assert torch.equal(program([x])[0], chain(x, 4))
        assert record.kinds() == (["graph"] if times > 1 else [])


def test_a_static_program_is_recorded_and_its_outputs_are_safe_to_keep():
    record = Record()
    graph, bundles = chain_graph(6, 1000)
    program = load(graph, bundles, {}, Options(), record=record)
    assert isinstance(program, GraphedProgram)
    inputs = [randn(1000) for _ in range(6)]
    outputs = [program([x])[0] for x in inputs]
    for x, y in zip(inputs, outputs):
        assert torch.equal(y, chain(x, 6))
    assert record.kinds() == ["graph"], record.events


def test_graphs_share_memory_and_do_not_disturb_each_other():
    programs = []
    for length, size in ((3, 1000), (5, 100_000), (4, 20_000)):
        graph, bundles = chain_graph(length, size)
        programs.append((load(graph, bundles, {}, Options()), length, size))
    for _ in range(4):
        kept = []
        for program, length, size in programs:
            x = randn(size)
            kept.append((program([x])[0], chain(x, length)))
        assert all(torch.equal(y, expected) for y, expected in kept)


def test_streams_and_threads():
    graph, bundles = chain_graph(6, 50_000)
    program = load(graph, bundles, {}, Options())
    wrong, barrier = [], threading.Barrier(3)

    def work(seed: int) -> None:
        barrier.wait()
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(50):
                x = randn(50_000)
                if not torch.equal(program([x])[0], chain(x, 6)):
                    wrong.append(seed)

    threads = [threading.Thread(target=work, args=(s,)) for s in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert wrong == []


@pytest.mark.parametrize("graphs", [False, True])
def test_an_unaligned_input(graphs):
    graph, bundles = chain_graph(2, 1000)
    program = load(graph, bundles, {}, Options(cuda_graphs=graphs))
    for offset in (1, 0, 2, 0, 1):
        x = randn(1004)[offset : offset + 1000]
        assert torch.equal(program([x])[0], chain(x, 2))


LINEAR = f"""
graph linear {{
  buffer x : f32[64, 64] strides [64, 1] on cuda:0
  buffer w : f32[64, 64] strides [64, 1] on cuda:0 frozen
  buffer t : f32[64, 64] strides [64, 1] on cuda:0
  buffer u : f32[4096] strides [1] on cuda:0
  buffer y : f32[64, 64] strides [64, 1] on cuda:0
  input x, w
  extern up t = "aten.mm.default"(view(x, [64, 64], [64, 1], 0), view(w, [64, 64], [1, 64], 0)) {{
  }}{affine_comp("k", "t", "u", 4096, "0, ")}
  extern act y = "aten.relu.default"(view(u, [64, 64], [64, 1], 0)) {{
  }}
  output view(y, [64, 64], [64, 1], 0), view(w, [64], [1], 64)
}}"""


def test_parameters_are_read_in_place_and_a_moved_one_is_recorded_again():
    record = Record()
    bundles = {"k": KernelBundle("k", (kernel("t", "u", 4096),))}
    program = load(
        parse_graph(LINEAR), bundles, {}, Options(), static_inputs=frozenset({1}), record=record
    )
    weight = torch.nn.Parameter(randn(64, 64))

    def check():
        x = randn(64, 64)
        with torch.no_grad():
            expected = torch.relu((x @ weight.T) * 2 + 1)
        y, row = program([x, weight])
        assert torch.equal(y, expected)
        assert row.data_ptr() == weight[1].data_ptr()
        assert not y.requires_grad

    for _ in range(3):
        check()
    with torch.no_grad():
        weight.mul_(2)
    check()
    weight.data = randn(64, 64)
    for _ in range(3):
        check()
    assert record.kinds() == ["graph"], record.events


WAITS = """
graph waits {
  buffer x : f32[100] strides [1] on cuda:0
  buffer y : f32[100] strides [1] on cuda:0
  input x
  extern wait y = "torchweld_test.waits.default"(view(x, [100], [1], 0)) {
  }
  output view(y, [100], [1], 0)
}"""


def test_a_call_that_cannot_be_recorded_is_found_out_and_told():
    """The recording fails; the program goes on without."""
    library = torch.library.Library("torchweld_test", "DEF")
    library.define("waits(Tensor x) -> Tensor")
    library.impl("waits", lambda x: x * (x.sum().item() * 0 + 2), "CUDA")
    record = Record()
    program = load(parse_graph(WAITS), {}, {}, Options(), record=record)
    for _ in range(4):
        x = randn(100)
        assert torch.equal(program([x])[0], x * 2)
    assert record.kinds() == ["no_graph"]


def test_graphs_before_and_after_a_recording_that_fails():
    library = torch.library.Library("torchweld_test_between", "DEF")
    library.define("waits(Tensor x) -> Tensor")
    library.impl("waits", lambda x: x * (x.sum().item() * 0 + 2), "CUDA")
    text = WAITS.replace("torchweld_test.waits", "torchweld_test_between.waits")
    graph, bundles = chain_graph(4, 1000)
    records = [Record(), Record(), Record()]
    before, after = (load(graph, bundles, {}, Options(), record=r) for r in records[::2])
    failing = load(parse_graph(text), {}, {}, Options(), record=records[1])
    for program in (before, failing, after, before):
        for _ in range(3):
            x = randn(100 if program is failing else 1000)
            expected = x * 2 if program is failing else chain(x, 4)
            assert torch.equal(program([x])[0], expected)
    kinds = [r.kinds() for r in records]
    assert kinds == [["graph"], ["no_graph"], ["graph"]], [r.events for r in records]


def test_scratch_and_prefill_on_the_gpu():
    graph = parse_graph("""
graph g {
  buffer x : f32[1000] strides [1] on cuda:0
  buffer y : f32[1000] strides [1] on cuda:0
  input x
  comp k [i:1000] {
    %0 = load x[i] : f32
    store.add y[i] %0 init 3.0
  }
  output view(y, [1000], [1], 0)
}""")
    tmp = Buffer("tmp", (1000,), dtypes.f32, (1,), "cuda:0")
    sources = (kernel("tmp", "y", 1000),)
    bundle = KernelBundle("k", sources, scratch=(tmp,), zeroed=("tmp",), prefill=(("y", 3.0),))
    program = load(graph, {"k": bundle}, {}, Options())
    for _ in range(3):
        assert torch.equal(program([randn(1000)])[0], torch.ones(1000, device="cuda:0"))


@pytest.mark.parametrize("graphs", [False, True])
def test_peak_memory_is_not_above_eager(graphs):
    size, length = 1 << 22, 8
    graph, bundles = chain_graph(length, size)
    program = load(graph, bundles, {}, Options(cuda_graphs=graphs))
    x = randn(size)
    POOL.release()
    program([x])
    torch.cuda.synchronize()
    ours, eager = peak_of(lambda: program([x])), peak_of(lambda: chain(x, length))
    assert ours <= eager


def peak_of(call) -> int:
    """Bytes beyond what there was: each call frees something of its own on the way."""
    gc.collect()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    call()
    return torch.cuda.max_memory_allocated() - before


def test_random_numbers_elsewhere_go_on_while_and_after_a_recording_fails():
    torch.cuda.manual_seed(7)
    expected = [randn(10) for _ in range(6)]
    torch.cuda.manual_seed(7)
    library = torch.library.Library("torchweld_test_random", "DEF")
    library.define("noisy(Tensor x) -> Tensor")
    library.impl("noisy", lambda x: x + x.sum().item(), "CUDA")
    text = WAITS.replace("torchweld_test.waits", "torchweld_test_random.noisy")
    program = load(parse_graph(text), {}, {}, Options())
    stream = torch.cuda.current_stream()
    for numbers in expected:
        program([torch.zeros(100, device="cuda:0")])
        assert torch.equal(randn(10), numbers)
        assert torch.cuda.current_stream() == stream


@pytest.mark.filterwarnings("ignore::torchweld.core.events.TorchweldWarning")
def test_idle_memory_is_freed_where_it_is_short():
    """A call fits only once the idle arena of another stream is gone."""
    size = 1 << 24
    graph, bundles = chain_graph(4, size)
    record = Record()
    program = load(graph, bundles, {}, Options(cuda_graphs=False), record=record)
    x = randn(size)
    program([x])
    POOL.release()
    torch.cuda.empty_cache()
    device = x.device
    idle = 16 * x.nbytes
    POOL.give((device, "another stream"), Arena(device, idle))
    total = torch.cuda.get_device_properties(device).total_memory
    small = 8 << 20  # the allocator's segments for small tensors: the comparison makes one
    torch.cuda.set_per_process_memory_fraction(
        (torch.cuda.memory_reserved() + x.nbytes + small) / total, device
    )
    try:
        assert torch.equal(program([x])[0], chain(x, 4))
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, device)
        POOL.release()
    assert record.kinds() == ["out_of_memory"]


LOGITS = f"""
graph logits {{
  buffer x : f32[32768] strides [1] on cuda:0
  buffer w : f32[64, 8192] strides [8192, 1] on cuda:0 frozen
  buffer t : f32[32768] strides [1] on cuda:0
  buffer h : f32[32768] strides [1] on cuda:0
  buffer y : f32[512, 8192] strides [8192, 1] on cuda:0
  input x, w{affine_comp("k0", "x", "t", 32768)}{affine_comp("k1", "t", "h", 32768)}
  extern head y = "aten.mm.default"(view(h, [512, 64], [64, 1], 0), view(w, [64, 8192], [8192, 1], 0)) {{
  }}
  output view(y, [512, 8192], [8192, 1], 0), view(t, [100], [1], 0)
}}"""  # noqa: E501


def test_a_small_result_that_is_finished_behind_a_large_one():
    """Its memory is that of a part of it, which was copied for the caller before that."""

    def losses(x, w):
        parts = []
        for _ in range(3):
            share = x.float().softmax(-1)
            parts.append((share.mean(0) * share.square().mean(0)).mean() * 1e6)
            x = x @ w
        return x, torch.stack(parts).sum()

    torch.manual_seed(0)
    w = torch.randn(1024, 1024, device="cuda", dtype=torch.bfloat16) / 32
    fused = torchweld.fuse(losses)
    with torch.no_grad():
        for _ in range(5):
            x = torch.randn(2048, 1024, device="cuda", dtype=torch.bfloat16)
            expected, got = losses(x, w)[1], fused(x, w)[1]
            assert abs(got - expected) <= 1e-2 * expected.abs()


def test_large_outputs_are_made_once():
    """Logits of 16 MB are in memory once, though the program is replayed."""
    record = Record()
    bundles = {
        "k0": KernelBundle("k0", (kernel("x", "t", 32768),)),
        "k1": KernelBundle("k1", (kernel("t", "h", 32768),)),
    }
    program = load(
        parse_graph(LOGITS), bundles, {}, Options(), static_inputs=frozenset({1}), record=record
    )
    weight = randn(64, 8192)
    torch.mm(randn(512, 64), weight)  # cuBLAS takes its workspace
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    kept = []
    for _ in range(4):
        x = randn(32768)
        kept.append((x, *program([x, weight])))
    for x, y, t in kept:
        assert torch.equal(t, chain(x, 1)[:100])
        torch.testing.assert_close(y, chain(x, 2).view(512, 64) @ weight, rtol=1e-3, atol=1e-3)
    assert record.kinds() == ["graph"], record.events
    del kept, x, y, t
    torch.cuda.reset_peak_memory_stats()
    program([randn(32768), weight])
    assert torch.cuda.max_memory_allocated() - before < 1.25 * 512 * 8192 * 4


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("sizes", [(64, 96, 128), (33, 7, 5), (1, 16, 24)])
def test_the_epilogue_of_addmm_is_the_gelu_by_tanh(dtype, sizes):
    """Whether cublasLt takes the product or not: within the rounding of the result."""
    rows, width, columns = sizes
    x, weight = randn(rows, width).to(dtype), randn(width, columns).to(dtype) / width**0.5
    bias = randn(columns).to(dtype)
    found = torch.ops.aten._addmm_activation(bias, x, weight, use_gelu=True).double()
    exact = torch.addmm(bias.double(), x.double(), weight.double())
    tanh = torch.nn.functional.gelu(exact, approximate="tanh")
    assert (found - tanh).norm() <= torch.finfo(dtype).eps * tanh.norm()


NOISY = f"""
graph noisy {{
  buffer x : f32[1000] strides [1] on cuda:0
  buffer r : f32[1000] strides [1] on cuda:0
  buffer t : f32[1000] strides [1] on cuda:0
  buffer y : f32[1000] strides [1] on cuda:0
  input x
  extern draw r = "aten.rand_like.default"(view(x, [1000], [1], 0)) {{
  }}{affine_comp("k0", "r", "t", 1000)}{affine_comp("k1", "t", "y", 1000)}
  output view(y, [1000], [1], 0)
}}"""


def test_random_calls_are_recorded_and_follow_the_users_seed():
    record = Record()
    bundles = {
        "k0": KernelBundle("k0", (kernel("r", "t", 1000),)),
        "k1": KernelBundle("k1", (kernel("t", "y", 1000),)),
    }
    program = load(parse_graph(NOISY), bundles, {}, Options(), record=record)
    x = randn(1000)
    torch.cuda.manual_seed(3)
    expected = [chain(torch.rand_like(x), 2) for _ in range(5)]
    for first in (0, 0, 2):
        torch.cuda.manual_seed(3)
        for number in range(5):
            # some numbers are drawn by eager in between
            drawn = chain(torch.rand_like(x), 2) if number < first else program([x])[0]
            assert torch.equal(drawn, expected[number])
    assert record.kinds() == ["graph"], record.events


def test_a_recorded_product_keeps_no_second_workspace():
    """Of 32 MiB on Hopper. What a graph holds beyond its own small tensors is not counted twice."""
    torch.compiler.reset()
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU()).cuda().eval()
    fused, x = torchweld.fuse(model), randn(32, 64)
    with torch.no_grad():
        model(x)
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()  # eager's workspace included
        for _ in range(4):
            fused(x)
    assert "graph" in [e.kind for r in records(fused) for e in r.events]
    assert torch.cuda.memory_allocated() <= before + (1 << 20)


def test_what_is_on_the_cpu_amid_a_gpus_graph():
    """Kernels of the CPU are none of the GPU's, whose templates read the GPU's memory."""

    def mixed(x, scale):
        near = scale.sin() * 2 + 1
        picked = x[:, [3, 0, 2]] + x[:, [-2]]
        return picked, near, x * near.to(x.device)

    x, scale = randn(7, 5), torch.randn(5)
    expected = mixed(x, scale)
    for _ in range(4):
        for got, wanted in zip(torchweld.fuse(mixed)(x, scale), expected):
            torch.testing.assert_close(got, wanted)
