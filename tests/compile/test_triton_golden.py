"""Golden Triton kernels: their text, and what they cost on sm_80 and sm_90. No GPU is needed.

After an intended change: TORCHWELD_UPDATE_GOLDEN=1 pytest tests/compile/test_triton_golden.py, then
read the diff.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

import triton_cases as cases
from triton_cases import Case
from triton_run import bundle_of

triton = pytest.importorskip("triton")

from torchweld.runtime.triton_compile import compile_source, resources  # noqa: E402

GOLDEN = Path(__file__).parent / "golden"
ROWS = 8192
_NARROW_LOAD = re.compile(r"ld\.global\S*\.[bu]16 ")

# Most registers of any kernel of the bundle, on either architecture.
REGISTERS = {
    "add_layer_norm_768": (cases.add_layer_norm(ROWS, 768), 96),
    "add_layer_norm_4096": (cases.add_layer_norm(ROWS, 4096), 112),
    "add_rms_norm_4096": (cases.add_rms_norm(ROWS, 4096), 96),
    "softmax_4096": (cases.softmax(ROWS, 4096, dtype="bf16"), 64),
    "softmax_online_32768": (cases.softmax(ROWS, 32768, dtype="bf16"), 80),
    "gelu_mul_4096": (cases.gelu_mul(ROWS, 4096), 64),
    "layer_norm_backward_4096": (cases.layer_norm_backward(ROWS, 4096), 128),
    "cross_entropy_50257": (cases.cross_entropy(ROWS, 50257), 96),
    "cross_entropy_backward_50257": (cases.cross_entropy_backward(ROWS, 50257), 96),
    "column_sum_4096": (cases.reduction("sum", ROWS, 4096, dim=0), 64),
    "transposed_copy_4096": (cases.transposed_copy(4096, 4096), 64),
    "rotary_64": (cases.rotary(8, 1024, 16, 64), 96),
}


@pytest.mark.parametrize("name", REGISTERS)
def test_text(name: str):
    sources = bundle_of(REGISTERS[name][0]).sources
    text = "\n\n".join(f"# {s.num_warps} warps, {s.grid}\n{s.text}" for s in sources)
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("TORCHWELD_UPDATE_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text()


@pytest.mark.parametrize("arch", (80, 90))
@pytest.mark.parametrize("name", REGISTERS)
def test_cost(name: str, arch: int):
    case, registers = REGISTERS[name]
    for source in bundle_of(case).sources:
        compiled = compile_source(source, arch)
        cost = resources(compiled)
        assert cost.spill_bytes == 0
        assert cost.registers <= registers
        assert cost.wide_loads > 0
        assert cost.wide_stores > 0 or _stores_little(case) or source.name.endswith("_finish")
        assert not _NARROW_LOAD.search(compiled.asm["ptx"]) or name.startswith("cross_entropy")


def _stores_little(case: Case) -> bool:
    """Only results of reductions."""
    return all(len(case.buffers[n].shape) == 1 for n in case.comp.writes)


@pytest.mark.parametrize("case", [cases.gelu_mul("s0", 1000), cases.gelu_mul("s0", 1001),
                                  cases.gelu_mul(1001, 1001), cases.row_scaled(9, 5003),
                                  cases.cross_entropy(9, 50257)],
                         ids=lambda c: "x".join(str(a.extent) for a in c.comp.axes))  # fmt: skip
def test_loads_are_wide_whatever_the_row_length(case: Case):
    assert resources(compile_source(bundle_of(case).sources[0], 90)).wide_loads > 0


def test_scans_from_the_end_load_and_store_as_wide_as_others():
    for columns in (4096, 40960):
        source = bundle_of(cases.cumulative("sum", 64, columns, backwards=True)).sources[0]
        cost = resources(compile_source(source, 90))
        assert cost.wide_loads > 0 and cost.wide_stores > 0


def test_a_checked_read_is_as_wide_as_another():
    for rows, columns in ((8192, 768), (1, 4096)):
        source = bundle_of(cases.checked_embedding(rows, columns, "bf16")).sources[0]
        cost = resources(compile_source(source, 90))
        assert cost.wide_loads > 0 and cost.wide_stores > 0 and cost.registers <= 48


def test_spills_are_reported():
    """The report can fail: a row of 65536 floats in four warps does not fit into registers."""
    from torchweld.templates.pointwise_reduce.gpu.generate import generate
    from torchweld.templates.pointwise_reduce.gpu.schedule import Schedule

    case = cases.add_layer_norm(4, 16384)
    crowded = Schedule("persistent", ("i",), ("j",), 1, 16384, 4)
    source = generate(case.comp, case.buffers, crowded).sources[0]
    assert resources(compile_source(source, 90)).spill_bytes > 0


def test_blocks_within_an_image_are_loaded_in_16_bytes():
    """Though what places them in it is a remainder, of which Triton knows nothing; and what they
    have in common is loaded once."""
    for one in (cases.channel_sums(128, 8, 8, 4096), cases.group_norm(128, 8, 8, 4096)):
        compiled = compile_source(bundle_of(one).sources[0], 90)
        wide = resources(compiled).wide_loads or compiled.asm["ptx"].count("cp.async.cg")
        assert wide and len(re.findall(r"ld\.global\S*\.b16", compiled.asm["ptx"])) <= 1


@pytest.mark.parametrize("arch", (80, 90))
@pytest.mark.parametrize("columns", (256, 512))
def test_sums_over_short_rows_leave_registers_for_another_program(columns: int, arch: int):
    source = bundle_of(cases.layer_norm_backward(65536, columns)).sources[0]
    cost = resources(compile_source(source, arch))
    assert cost.spill_bytes == 0 and 2 * cost.registers * 32 * source.num_warps <= 65536
