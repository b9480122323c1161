"""Gluon products compiled for a Hopper GPU without one: nothing spills, products are asynchronous,
tiles go by TMA; every operation that may be in an epilogue is printed."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch

import product_cases as cases
from image_cases import normalised
from product_cases import Body, parts
from torchweld.codegen.source import DescriptorArg, KernelSource
from torchweld.core import dtypes
from torchweld.core.errors import InvalidIR
from torchweld.ir import affine
from torchweld.ir.nodes import Op
from torchweld.ir.scalar import BITS, TABLE
from torchweld.ir.size import symbol
from torchweld.runtime.triton_compile import compile_source, request_for, resources
from torchweld.runtime.triton_worker import described
from torchweld.templates.gemm.hopper import schedule as product_gluon
from torchweld.templates.gemm.hopper.generate import generate
from torchweld.templates.gemm.schedule import ProductSchedule
from triton_cases import Case, title
from triton_run import H100

SHARED_LIMIT = 227 << 10
SHIPPED = [
    cases.bias_gelu(4096, 3072, 768),
    cases.bias_gelu(128, 3072, 768),
    cases.bias_gelu("s0", 3072, 768, "f16", sizes={"s0": 12608}),
    cases.bias_residual(4096, 768, 768),
    cases.bias_residual(4096, 768, 3072),
    cases.bias_residual(12608, 768, 768),
    cases.residual(2048, 4096, 14336),
    cases.gated(8192, 3072, 768),
    cases.gated(4096, 14336, 4096, "f16"),
    cases.linear(2048, 3072, 2048),
    cases.linear(3072, 768, 4096, left="km", right="kn"),
    cases.scaled_outputs(4096, 768, 768),
    cases.heads(32, 128, 12, 64, 768),
    cases.batched(64, 512, 512, 64),
    cases.dropout(4096, 768, 768),
    cases.lower_half(1024, 1024, 64),
    cases.side_by_side(4096, (768, 768, 768), 768),
    cases.summed(4096, 3072, 768),
    cases.summed_halves(4096, 2736, 1024),
    cases.gelu_backward(8192, 3072, 768),
    cases.side_by_side(2048, (2048, 512, 512), 2048),
    cases.side_by_side(2048, (1152, 4096), 1024, activated={1}),  # a parallel block's
    cases.apart(cases.biased(50176, 195, 96), "y"),
    cases.apart(cases.linear(50176, 96, 195, right="kn")),
    normalised(16, 128, (56, 56), 128, (3, 3), padding=1, groups=2),
    normalised(16, 1024, (14, 14), 1024, (3, 3), stride=2, padding=1, groups=32),
    normalised(16, 32, (56, 56), 128, (3, 3), stride=2, padding=2, dilation=2, behind=32),
]


def tiles_of(case: Case, count: int = 1) -> list[ProductSchedule]:
    """The most promising ones."""
    accesses, found = parts(case)
    assert product_gluon.supports(accesses, found, H100) is None
    return list(product_gluon.candidates(accesses, found, H100, case.sizes))[:count]


def source_of(case: Case, tiles: ProductSchedule) -> KernelSource:
    source, *_ = generate(case.comp, case.buffers, tiles, case.sizes).sources
    return source


def dropout_of_relu() -> Case:
    """Beside what was dropped, what goes in is stored."""
    b = Body("bf16", m=4096, n=3072, k=768)
    made = b.rounded(b.dot(b.read("x", "mk"), b.read("w", "nk")))
    at = b.builder.index(affine.axis("m") * 3072 + affine.axis("n"))
    uniform = b.builder.emit(Op("philox", (b.read("seed", "", dtypes.i64), at), dtypes.f32))
    kept = b.op("ge", uniform, 0.1)
    b.write("h", "mn", made)
    b.write("kept", "mn", kept, dtypes.b1)
    relu = b.op("maximum", made, 0.0)
    b.write("y", "mn", b.op("where", kept, relu, b.builder.const(0.0, dtypes.f32)))
    return b.case("dropout_of_relu")


def test_a_rounded_product_is_added_by_another_operation():
    """Of 16 bits LLVM would make one of the two (gpu/roundings.py)."""
    b = Body("bf16", m=4096, n=3072, k=768)
    made = b.rounded(b.dot(b.read("x", "mk"), b.read("w", "nk")))
    scaled = b.rounded(b.op("mul", made, b.read("scale", "n")))
    shifted = b.rounded(b.op("add", scaled, b.read("bias", "n")))
    b.write("y", "mn", shifted)
    b.write("positive", "mn", b.op("gt", shifted, 0.0), dtypes.b1)
    case = b.case("scaled_and_shifted")
    (tiles,) = tiles_of(case)
    ptx = compile_source(source_of(case, tiles), 90).asm["ptx"]
    assert "mul.rn.f32" in ptx
    assert not re.search(r"fma\S*\.bf16", ptx)


@pytest.mark.parametrize("case", [*SHIPPED, dropout_of_relu()], ids=title)
def test_the_default_does_not_spill(case: Case):
    (tiles,) = tiles_of(case)
    source = source_of(case, tiles)
    compiled = compile_source(source, 90)
    used = resources(compiled)
    assert used.spill_bytes == 0 and used.shared_bytes <= SHARED_LIMIT
    assert used.registers <= source.max_registers
    ptx = compiled.asm["ptx"]
    assert "wgmma.mma_async" in ptx and "cp.async.bulk.tensor" in ptx and "setmaxnreg" in ptx
    assert "mma.sync" not in ptx


@pytest.mark.parametrize(("case", "every"), [
    (cases.bias_residual(4096, 768, 768), 3), (cases.gated(4096, 3072, 768), 1),
    (cases.scaled_outputs(4096, 768, 768), 3),
    (normalised(8, 64, (28, 28), 192, (3, 3), padding=1), 2),
])  # fmt: skip
def test_all_that_a_tuner_may_time_compiles(case: Case, every: int):
    """All tiles of the kernel with most registers, each third of those that read less."""
    for tiles in [t for t in tiles_of(case, 99) if t.group == 8][::every]:
        assert resources(compile_source(source_of(case, tiles), 90)).spill_bytes == 0, tiles


def test_results_and_residuals_pass_through_shared_memory():
    case = cases.bias_residual(4096, 768, 768)
    source = source_of(case, tiles_of(case)[0])
    assert [a.buffer for a in source.args if isinstance(a, DescriptorArg)] == ["x", "w", "w", "r",
                                                                              "y"]  # fmt: skip
    ptx = compile_source(source, 90).asm["ptx"]
    assert "st.global" not in ptx
    assert source.otherwise.language == "triton"


def test_what_depends_on_rows_alone_is_computed_once_a_tile():
    case = cases.scaled_outputs(4096, 768, 768)
    text = source_of(case, tiles_of(case)[0]).text
    prepare, rest = text.split("def prepare(")[1].split("def finish(")
    assert "tl.load(p_s" in prepare and "tl.load(p_s" not in rest
    assert rest.index(" = prepare(") < rest.index("finish(v")


def test_short_kernels_begin_while_the_one_in_front_runs():
    case = cases.bias_residual(1024, 768, 3072)
    source = source_of(case, tiles_of(case)[0])
    ptx = compile_source(source, 90).asm["ptx"]
    assert source.early and "griddepcontrol.wait" in ptx and "griddepcontrol.launch" in ptx


def test_groups_that_take_turns_have_the_code_of_one_slice():
    case = cases.bias_gelu(12608, 3072, 768)
    (tiles,) = tiles_of(case)
    ptx = compile_source(source_of(case, tiles), 90).asm["ptx"]
    assert ptx.count("ex2.approx") == 2 * 128 * 64 // 128  # groups, points of a slice, threads


def test_sizes_that_are_known_at_the_call_are_arguments():
    case = cases.linear("s0", 136, 8 * symbol("s1"), sizes={"s0": 201, "s1": 9})
    source = source_of(case, tiles_of(case)[0])
    assert source.signature[-2:] == ("i64", "i64")
    (grid,) = source.grid
    assert grid.limit == 132
    assert resources(compile_source(source, 90)).spill_bytes == 0


def test_schedules_that_do_not_fit_are_refused():
    case = cases.linear(256, 256, 256)
    good = tiles_of(case)[0]
    for change in ({"stages": 40}, {"block_m": 512}, {"num_warps": 2}, {"block_n": 96},
                   {"splits": 2}, {"form": "triton"}):  # fmt: skip
        with pytest.raises(InvalidIR):
            source_of(case, replace(good, **change))


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        (cases.linear(128, 64, 100), "not aligned"),
        (cases.linear(128, 64, 64, gap=3), "not aligned"),
        (cases.linear(136, 72, "s0"), "not aligned"),
        (cases.normed(128, 64, 64), "is computed"),
        (cases.gate_before(128, 64, 64), "is computed"),
    ],
)
def test_reasons(case: Case, reason: str):
    accesses, found = parts(case)
    assert reason in product_gluon.supports(accesses, found, H100)


# every operation


def chain(kind: str) -> Case:
    """All operations on arguments of a kind, added up."""
    b = Body("bf16", m=64, n=64, k=64)
    made = b.dot(b.read("x", "mk"), b.read("w", "nk"))
    b_ = b.builder
    dtype = {"f": dtypes.f32, "i": dtypes.i32, "l": dtypes.i64, "b": dtypes.b1}[kind]
    value = b.op("gt", made, 0.0) if kind == "b" else b_.cast(made, dtype)
    other = b_.cast(b.read("c", "n", dtypes.f32), dtype)
    total = made
    for row in TABLE.values():
        if {"l": "i"}.get(kind, kind) not in row.kinds or (row.name == "philox" and kind != "l"):
            continue
        if row.name in BITS and BITS[row.name][0] != b_[value].dtype:
            continue
        which = b.op("gt", made, 0.5)
        args = {1: (value,), 2: (value, other), 3: (which, value, other)}[row.arity]
        given = BITS.get(row.name, (None, dtypes.f32))[1] if row.result == "free" else None
        result = b_.emit(Op(row.name, args, given)) if given else b.op(row.name, *args)
        total = b.op("add", total, b_.cast(result, dtypes.f32))
    b.write("y", "mn", total)
    return b.case(f"chain_{kind}")


@pytest.mark.parametrize("kind", ["f", "i", "l", "b"])
def test_every_operation_is_known_to_gluon(kind: str):
    """Its front end takes them: the rest of the compiler is Triton's."""
    from triton._C.libtriton import ir
    from triton.backends.compiler import GPUTarget
    from triton.compiler.compiler import make_backend

    source = source_of(chain(kind), ProductSchedule("gluon", 64, 64, 64, 4, 4, pingpong=True))
    target = GPUTarget("cuda", 90, 32)
    backend, context = make_backend(target), ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    options = backend.parse_options({"num_warps": 4})
    functions = backend.get_codegen_implementation(options)
    module = described(request_for(source, 90)).make_ir(
        target, options, functions, backend.get_module_map(), context
    )
    assert len(re.findall(r"tt\.extern_elementwise|arith\.", str(module))) > 10


def test_dtypes_of_results():
    """Results of each width, and a bool, in one kernel: some by TMA, some from registers."""
    b = Body("f16", m=256, n=128, k=64)
    made = b.dot(b.read("x", "mk"), b.read("w", "nk"))
    for name, dtype in (("a", dtypes.f32), ("b", dtypes.f16), ("c", dtypes.i32), ("d", dtypes.b1)):
        b.write(name, "mn", made if dtype != dtypes.b1 else b.op("gt", made, 0.0), dtype)
    case = b.case("widths", {"x": torch.zeros(256, 64)})
    for tiles in tiles_of(case, 3):
        assert resources(compile_source(source_of(case, tiles), 90)).spill_bytes == 0


@pytest.mark.parametrize("rows", [64, 128, 4096])
def test_another_kernel_serves_unaligned_addresses(rows: int):
    """One without scratch, also where the best one would share the depth of a tile."""
    case = cases.bias_residual(rows, 768, 3072)
    tiles = ProductSchedule("gluon", 64, 64, 64, 4, 4, pingpong=True)
    bundle = generate(case.comp, case.buffers, tiles, case.sizes)
    assert bundle.scratch == () and bundle.sources[0].otherwise.language == "triton"


@pytest.mark.parametrize("case", [cases.bias_gelu(4096, 768, 768), cases.gated(4096, 768, 768)],
                         ids=title)  # fmt: skip
def test_gates_take_few_instructions(case: Case):
    """exp and 1 / x are one instruction each where Triton's have five, erf takes one exp2."""
    (tiles,) = tiles_of(case)
    ptx = compile_source(source_of(case, tiles), 90).asm["ptx"]
    assert ("rcp.approx.ftz.f32" in ptx) == (case.name == "gated") and "ex2.approx.ftz.f32" in ptx
    assert not re.search(r"div\.full\.f32|ex2\.approx\.f32", ptx)
