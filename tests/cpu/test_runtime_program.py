"""Programs on the CPU: hand-written graphs with hand-written kernels, against eager."""

from __future__ import annotations

import gc
import threading
import weakref

import pytest
import torch

from chains import Record, affine_comp, chain, chain_steps, chain_text
from torchweld.codegen.source import BufferArg, KernelBundle, KernelSource, SizeArg
from torchweld.core import dtypes, events
from torchweld.core.errors import UsageError
from torchweld.core.events import TorchweldWarning
from torchweld.core.options import Options
from torchweld.ir.nodes import Buffer
from torchweld.ir.parser import parse_graph
from torchweld.ir.size import symbol
from torchweld.runtime.load import load
from torchweld.runtime.memory import POOL, SMALL_BYTES, ArenaPool
from torchweld.runtime.program import Program

S = symbol("s0")
AFFINE = """#include <stdint.h>
extern "C" void affine(void* const* p, const int64_t* n) {
  const float* x = (const float*)p[0]; float* y = (float*)p[1];
  for (int64_t i = 0; i < n[0]; ++i) y[i] = x[i] * 2 + 1;
}
"""
COUNT = """#include <stdint.h>
extern "C" void count(void* const* p, const int64_t* n) {
  const int64_t* x = (const int64_t*)p[0]; float* y = (float*)p[1];
  for (int64_t i = 0; i < n[0]; ++i) y[x[i]] += 1;
}
"""


def affine_bundle(name: str, source: str, target: str, size=S) -> KernelBundle:
    args = (BufferArg(source), BufferArg(target), SizeArg(size))
    return KernelBundle(name, (KernelSource("cpp", "affine", AFFINE, args),))


def chain_graph(length: int):
    bundles = {step[0]: affine_bundle(*step) for step in chain_steps(length)}
    return parse_graph(chain_text(length, "cpu", more=", s0")), bundles


@pytest.fixture
def record() -> Record:
    return Record()


@pytest.mark.parametrize("native", [True, False], ids=["compiled", "interpreted"])
@pytest.mark.parametrize("length", [1, 2, 7])
def test_a_chain_for_many_sizes(native, length, record):
    graph, bundles = chain_graph(length)
    program = load(graph, bundles if native else {}, {}, Options(), record=record)
    for size in (8, 0, 1, 127, 128, 129, 8, 1009):
        x = torch.randn(size)
        y, n = program([x])
        assert torch.equal(y, chain(x, length))
        assert n == size
    assert record.events == []


def test_intermediates_share_memory():
    graph, bundles = chain_graph(9)
    program = load(graph, bundles, {}, Options())
    assert program.arena_needs([torch.zeros(1024)]) == [(torch.device("cpu"), 2 * 4096)]


def test_outputs_stay_as_they_are_after_later_calls():
    graph, bundles = chain_graph(3)
    program = load(graph, bundles, {}, Options())
    inputs = [torch.randn(33) for _ in range(5)]
    outputs = [program([x])[0] for x in inputs]
    for x, y in zip(inputs, outputs):
        assert torch.equal(y, chain(x, 3))


def test_the_argument_list_is_emptied_and_inputs_are_freed_early():
    graph, bundles = chain_graph(2)
    freed_at_step = []
    program = load(graph, {"k0": bundles["k0"]}, {}, Options())
    x = torch.randn(16)
    watched = weakref.ref(x, lambda _: freed_at_step.append(True))
    args = [x]
    del x
    program(args)
    assert args == []
    assert watched() is None
    assert freed_at_step


def test_threads_do_not_disturb_each_other():
    graph, bundles = chain_graph(6)
    program = load(graph, bundles, {}, Options())
    wrong, barrier = [], threading.Barrier(4)

    def work(seed: int) -> None:
        x = torch.randn(2000 + seed, generator=torch.Generator().manual_seed(seed))
        expected = chain(x, 6)
        barrier.wait()
        for _ in range(200):
            if not torch.equal(program([x])[0], expected):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(s,)) for s in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert wrong == []


def test_an_input_in_another_layout_is_copied_and_told(record):
    graph, bundles = chain_graph(2)
    program = load(graph, bundles, {}, Options(), record=record)
    x = torch.randn(20)[::2]
    assert torch.equal(program([x])[0], chain(x, 2))
    assert record.kinds() == ["copied_input"]


def test_strides_that_do_not_matter_are_not_copied(record):
    graph, bundles = chain_graph(2)
    program = load(graph, bundles, {}, Options(), record=record)
    program([torch.randn(1, 7)[:, 0]])
    assert record.events == []


def test_an_input_of_the_wrong_type_is_refused():
    graph, bundles = chain_graph(2)
    program = load(graph, bundles, {}, Options())
    with pytest.raises(UsageError, match="input x is torch"):
        program([torch.randn(8, dtype=torch.float64)])


def test_a_kernel_that_does_not_compile_is_interpreted_with_one_warning(record):
    graph, bundles = chain_graph(3)
    broken = KernelSource("cpp", "affine", "not C++", bundles["k1"].sources[0].args)
    bundles["k1"] = KernelBundle("k1", (broken,))
    with pytest.warns(UserWarning, match="kernel k1 runs as separate operations") as warned:
        program = load(graph, bundles, {}, Options(), record=record)
    assert len(warned) == 1
    assert record.kinds() == ["fallback"]
    x = torch.randn(50)
    assert torch.equal(program([x])[0], chain(x, 3))


def test_a_kernel_without_its_function_is_interpreted(record):
    graph, bundles = chain_graph(1)
    nameless = KernelSource("cpp", "missing", AFFINE, bundles["k0"].sources[0].args)
    with pytest.warns(UserWarning, match="does not load"):
        load(graph, {"k0": KernelBundle("k0", (nameless,))}, {}, Options(), record=record)
    assert record.kinds() == ["fallback"]


LINEAR = f"""
graph linear {{
  buffer x : f32[4, 8] strides [8, 1] on cpu
  buffer w : f32[6, 8] strides [8, 1] on cpu frozen
  buffer c : f32[24] strides [1] on cpu
  buffer t : f32[4, 6] strides [6, 1] on cpu
  buffer flat : f32[24] strides [1] on cpu
  buffer y : f32[24] strides [1] on cpu
  input x, w
  extern product t = "aten.mm.default"(view(x, [4, 8], [8, 1], 0), view(w, [8, 6], [1, 8], 0)) {{
  }}{affine_comp("k", "t", "flat", 24, "0, ")}
  extern sum y = "aten.add.Tensor"(view(flat, [24], [1], 0), view(c, [24], [1], 0), alpha=3) {{
  }}
  output view(y, [12], [1], 12), view(y, [2, 12], [12, 1], 0), view(x, [8], [1], 8), None, 7
}}"""


@pytest.fixture
def linear():
    """(program, constant, weight)"""
    constant, weight = torch.randn(24), torch.nn.Parameter(torch.randn(6, 8))
    bundles = {"k": affine_bundle("k", "t", "flat", 24)}
    program = load(
        parse_graph(LINEAR), bundles, {"c": constant}, Options(), static_inputs=frozenset({1})
    )
    return program, constant, weight


def expected_linear(x, weight, constant):
    with torch.no_grad():
        affine = (x @ weight.T) * 2 + 1
        return torch.add(affine.view(2, 12), constant.view(2, 12), alpha=3)


def test_library_calls_between_kernels(linear):
    program, constant, weight = linear
    for _ in range(3):
        x = torch.randn(4, 8)
        row, whole, second, nothing, seven = program([x, weight])
        assert torch.equal(whole, expected_linear(x, weight, constant))
        assert torch.equal(row, whole[1])
        assert torch.equal(second, x[1])
        assert (nothing, seven) == (None, 7)
        assert not whole.requires_grad


def test_outputs_that_alias_share_memory(linear):
    program, _, weight = linear
    x = torch.randn(4, 8)
    row, whole, second, *_ = program([x, weight])
    row.zero_()
    assert whole[1].abs().sum() == 0
    assert second.data_ptr() == x[1].data_ptr()


PRODUCT = """
graph product {{
  buffer x : f32[4, 8] strides [8, 1] on cpu
  buffer w : f32[6, 8] strides [8, 1] on cpu
  buffer t : f32[4, 6] strides [6, 1] on cpu
  input x, w
  extern product t = "aten.mm.default"(view(x, [4, 8], [8, 1], 0), view(w, [8, 6], [1, 8], 0)) {{
  }}
  output {outputs}
}}"""
PARTS = "view(t, [24], [1], 0)", "view(t, [6, 2], [1, 6], 12)"


@pytest.mark.parametrize("outputs", [PARTS, PARTS[:1], PARTS[1:]])
def test_outputs_of_one_memory_share_a_version(outputs):
    """A write to one shows autograd that the other, kept for a backward, has changed."""
    program = load(parse_graph(PRODUCT.format(outputs=", ".join(outputs))), {}, {}, Options())
    x, w = torch.randn(4, 8), torch.randn(6, 8, requires_grad=True)
    expected = (x @ w.detach().T).as_strided
    shapes = {PARTS[0]: ((24,), (1,), 0), PARTS[1]: ((6, 2), (1, 6), 12)}
    results = program([x, w])
    for text, result in zip(outputs, results):
        assert torch.equal(result, expected(*shapes[text])) and not result.requires_grad
    before = [r._version for r in results]
    results[0].zero_()
    assert [r._version for r in results] == [version + 1 for version in before]


def test_a_weight_changed_in_place_or_replaced_is_seen(linear):
    program, constant, weight = linear
    x = torch.randn(4, 8)
    program([x, weight])
    with torch.no_grad():
        weight.mul_(3)
    assert torch.equal(program([x, weight])[1], expected_linear(x, weight, constant))
    weight.data = torch.randn(6, 8)
    assert torch.equal(program([x, weight])[1], expected_linear(x, weight, constant))


def test_a_static_input_that_comes_in_another_layout(linear):
    program, constant, weight = linear
    x = torch.randn(4, 8)
    program([x, weight])
    weight.data = torch.randn(8, 6).T
    for _ in range(2):  # the library sums in another order for another layout
        torch.testing.assert_close(program([x, weight])[1], expected_linear(x, weight, constant))
    weight.data = torch.randn(6, 8)
    assert torch.equal(program([x, weight])[1], expected_linear(x, weight, constant))


def test_an_idle_program_keeps_no_input_alive(linear):
    program, _, weight = linear
    x = torch.randn(4, 8)
    watched = weakref.ref(x)
    outputs = program([x, weight])
    del x, outputs
    gc.collect()
    assert watched() is None


MUTATION = """
graph mutation {
  buffer x : f32[5, 3] strides [3, 1] on cpu
  buffer v : f32[5, 3] strides [3, 1] on cpu
  input x, v
  extern c _ = "aten.copy_.default"(view(x, [15], [1], 0), view(v, [15], [1], 0)) mutates x {
  }
  output view(v, [5, 3], [3, 1], 0)
}"""


def test_a_call_that_changes_an_input_raises_its_version():
    program = load(parse_graph(MUTATION), {}, {}, Options())
    x, v = torch.randn(5, 3), torch.randn(5, 3)
    before = x._version
    program([x, v])
    assert torch.equal(x, v) and x._version > before


@pytest.mark.parametrize("transposed", [False, True])
def test_a_mutated_input_is_changed_in_the_callers_memory(transposed):
    program = load(parse_graph(MUTATION), {}, {}, Options())
    x = torch.zeros(3, 5).T if transposed else torch.zeros(5, 3)
    v = torch.randn(5, 3)
    assert program([x, v])[0] is v
    assert torch.equal(x, v)


HISTOGRAM = """
graph histogram {
  buffer x : i64[100] strides [1] on cpu
  buffer start : f32[8] strides [1] on cpu
  buffer y : f32[8] strides [1] on cpu
  input x, start
  comp count [i:100] {
    %0 = load x[i] : i64
    %1 = const 1.0 : f32
    store.add y[%0] %1 init INIT
  }
  output view(y, [8], [1], 0)
}"""


@pytest.mark.parametrize("init", [0.0, -1.5, "start"])
@pytest.mark.parametrize("native", [True, False], ids=["compiled", "interpreted"])
def test_buffers_are_filled_before_a_kernel_that_combines(init, native):
    text = HISTOGRAM.replace("INIT", f"copy {init}" if init == "start" else str(init))
    source = KernelSource("cpp", "count", COUNT, (BufferArg("x"), BufferArg("y"), SizeArg(100)))
    bundle = KernelBundle("count", (source,), prefill=(("y", init),))
    program = load(parse_graph(text), {"count": bundle} if native else {}, {}, Options())
    x, start = torch.randint(0, 8, (100,)), torch.randn(8)
    expected = torch.bincount(x, minlength=8) + (start if init == "start" else init)
    for _ in range(2):
        assert torch.allclose(program([x, start])[0], expected)


def test_scratch_is_zeroed_at_each_call():
    graph = parse_graph(HISTOGRAM.replace("INIT", "0.0"))
    tmp = Buffer("tmp", (8,), dtypes.f32, (1,))
    count = KernelSource("cpp", "count", COUNT, (BufferArg("x"), BufferArg("tmp"), SizeArg(100)))
    finish = KernelSource("cpp", "affine", AFFINE, (BufferArg("tmp"), BufferArg("y"), SizeArg(8)))
    bundle = KernelBundle("count", (count, finish), scratch=(tmp,), zeroed=("tmp",))
    program = load(graph, {"count": bundle}, {}, Options())
    x = torch.randint(0, 8, (100,))
    for _ in range(3):
        assert torch.equal(
            program([x, torch.zeros(8)])[0], torch.bincount(x, minlength=8) * 2.0 + 1
        )


def test_programs_share_one_idle_arena():
    POOL.release()
    for length in (4, 8):
        graph, bundles = chain_graph(length)
        load(graph, bundles, {}, Options())([torch.randn(1000)])
    assert list(POOL.idle_bytes.values()) == [2 * 4096]
    POOL.release()


@pytest.mark.parametrize(("elements", "kept"), [(1000, True), (SMALL_BYTES["cpu"], False)])
def test_training_keeps_a_small_arena(elements, kept):
    """What is prepared for it would be prepared in each step; a large one others may want."""
    pool = ArenaPool()
    graph, bundles = chain_graph(4)
    loaded = load(graph, bundles, {}, Options(), kind="backward").loaded
    Program(loaded, {}, pool)([torch.randn(elements)])
    assert bool(pool.idle_bytes) == kept


def test_a_recorded_call_has_an_arena_of_its_own(monkeypatch):
    """A CUDA graph writes to it at each replay, and frees it with itself: nobody else may have it,
    and it may be nobody else's."""
    pool = ArenaPool()
    graph, bundles = chain_graph(4)
    program = Program(load(graph, bundles, {}, Options()).loaded, {}, pool)
    program([torch.randn(100)])
    before = dict(pool._idle)
    program._gpu = 0
    monkeypatch.setattr("torchweld.runtime.program.is_capturing", lambda: True)
    x = torch.randn(100)
    assert torch.equal(program._run([x])[0], chain(x, 4))
    assert pool._idle == before


STRIDED = """
graph strided {
  buffer x : f32[4, 6] strides [6, 1] on cpu
  buffer t : f32[6, 4] strides [4, 1] on cpu
  input x
  extern turned t = "aten.t.default"(view(x, [4, 6], [6, 1], 0)) {
  }
  output view(t, [6, 4], [4, 1], 0)
}"""


def test_a_result_in_another_layout_is_copied_and_told(record):
    program = load(parse_graph(STRIDED), {}, {}, Options(), record=record)
    x = torch.randn(4, 6)
    (y,) = program([x])
    assert y.stride() == (4, 1)
    assert torch.equal(y, x.T)
    assert record.kinds() == ["copied_result"]


ALIAS = """
graph alias {
  buffer x : f32[4, 6] strides [6, 1] on cpu
  buffer e : f32[6, 6] strides [6, 1] on cpu
  buffer m : f32[4, 6] strides [6, 1] on cpu
  buffer t : f32[4, 6] strides [6, 1] on cpu
  input x, e
  extern m m = "aten.mm.default"(view(x, [4, 6], [6, 1], 0), view(e, [6, 6], [6, 1], 0)) {
  }
  extern same t = "aten.alias.default"(view(m, [4, 6], [6, 1], 0)) {
  }
  output view(t, [4, 6], [6, 1], 0)
}"""


def test_a_result_in_the_arenas_memory_is_copied():
    program = load(parse_graph(ALIAS), {}, {}, Options())
    x, e = torch.randn(4, 6), torch.eye(6)
    (y,) = program([x, e])
    program([torch.zeros(4, 6), e])
    assert torch.equal(y, x)


class ShortPool(ArenaPool):
    """Fails for want of memory until it has been released `failures` times."""

    def __init__(self, failures: int) -> None:
        super().__init__()
        self.failures = failures

    def take(self, place, device, size):
        if self.failures:
            raise torch.OutOfMemoryError("no memory")
        return super().take(place, device, size)

    def release(self) -> None:
        self.failures -= 1
        super().release()


def short_program(failures: int, record: Record, kind: str = "inference") -> Program:
    graph, bundles = chain_graph(3)
    loaded = load(graph, bundles, {}, Options(), kind=kind, record=record).loaded
    return Program(loaded, {}, ShortPool(failures))


def test_a_call_without_memory_is_made_again(record):
    events.clear()
    program = short_program(1, record)
    x = torch.randn(50)
    with pytest.warns(TorchweldWarning, match="ran out of memory, and is called again: no memory"):
        assert torch.equal(program([x])[0], chain(x, 3))
    assert torch.equal(program([x])[0], chain(x, 3))
    assert record.kinds() == ["out_of_memory"]


@pytest.mark.filterwarnings("ignore::torchweld.core.events.TorchweldWarning")
@pytest.mark.parametrize(("kind", "failures"), [("inference", 2), ("backward", 1)])
def test_a_call_without_memory_fails_as_eager_does(kind, failures, record):
    """After the second attempt; at once where the inputs are freed on the way."""
    with pytest.raises(torch.OutOfMemoryError):
        short_program(failures, record, kind)([torch.randn(50)])


def test_programs_that_alternate_share_an_arena():
    pool = ArenaPool()
    programs = []
    for length in (3, 6):
        graph, bundles = chain_graph(length)
        programs.append((Program(load(graph, bundles, {}, Options()).loaded, {}, pool), length))
    for size in (1000, 3000, 500):
        for program, length in programs:
            x = torch.randn(size)
            assert torch.equal(program([x])[0], chain(x, length))
    assert len(pool.idle_bytes) == 1
