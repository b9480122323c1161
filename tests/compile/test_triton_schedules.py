"""Schedules of pointwise_reduce/gpu: what is refused and why, which form each kind of Comp gets,
and that every candidate can be generated."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

import triton_cases as cases
from torchweld.core import dtypes
from torchweld.core.errors import InvalidIR
from torchweld.ir.access import addressed
from torchweld.runtime.triton_compile import compile_source, resources
from torchweld.targets.find import named_target
from torchweld.templates import registry
from torchweld.templates.pointwise_reduce.gpu.default import candidates, schedule
from torchweld.templates.pointwise_reduce.gpu.generate import generate
from torchweld.templates.pointwise_reduce.gpu.schedule import Schedule, supports, valid
from triton_cases import Case, case, reduction
from triton_run import H100, bundle_of

SCATTER = "%0 = load at[i] : i64\n%1 = load x[i] : {0}\nstore.{1} y[%0] %1 init 0"


def scatter(dtype: str, combine: str) -> Case:
    return case("scatter", "i:8", SCATTER.format(dtype, combine),
                at=("i64", 8), x=(dtype, 8), y=(dtype, 3))  # fmt: skip


@pytest.mark.parametrize(
    ("refused", "reason"),
    [
        (scatter("f32", "max"), "no atomic max"),
        (scatter("i64", "mul"), "no atomic mul"),
        (scatter("bf16", "add"), "no atomic add"),
        (scatter("i8", "add"), "no atomic add"),
        (cases.layer_norm_backward(8, 20000), "do not fit into registers"),
        (cases.layer_norm_backward(8, 100), None),
        (scatter("i64", "add"), None),
        (scatter("f32", "add"), None),
        (scatter("i32", "max"), None),
    ],
)
def test_supports(refused: Case, reason: str | None):
    said = supports(refused.comp, refused.buffers)
    assert said is None if reason is None else reason in said
    if reason is not None:
        with pytest.raises(InvalidIR, match="cannot be a CUDA kernel"):
            schedule(refused.comp, refused.buffers, H100)


@pytest.mark.parametrize(
    ("chosen", "form", "splits"),
    [
        (cases.gelu_mul(8192, 768), "grid", False),
        (cases.transposed_copy(300, 300), "grid", False),
        (cases.softmax(8192, 768), "persistent", False),
        (cases.softmax(8192, 40000), "looped", False),
        (cases.softmax(4, 1 << 20), "looped", False),
        (reduction("sum", 4, 1 << 20), "looped", True),
        (cases.exponentials(4, 1 << 20), "looped", True),
        (cases.scaled_sum(4, 1 << 20), "looped", True),
        (reduction("sum", 8192, 768), "persistent", False),
        (reduction("sum", 100_000, 768), "persistent", False),
        (reduction("sum", 100_000, 130), "looped", False),  # 256 lanes for 130 columns
        (reduction("sum", 100_000, 1024, "bf16"), "looped", False),  # in blocks of 256
        (reduction("sum", 1000, 1024, "bf16"), "persistent", False),
        (cases.softmax(100_000, 130), "looped", False),
        (cases.softmax(100_000, 130, dtype="bf16"), "persistent", False),
        (reduction("sum", 8192, 768, dim=0), "looped", True),
        (reduction("argmax", 3, 100000), "looped", True),
        (cases.doubled_and_summed(4096, 3072), "looped", True),
        (cases.layer_norm_backward(8192, 768), "persistent", True),
        (cases.cumulative("sum", 1, 50000), "looped", False),
    ],
    ids=lambda x: getattr(x, "name", x),
)
def test_default_forms(chosen: Case, form: str, splits: bool):
    found = schedule(chosen.comp, chosen.buffers, H100)
    assert (found.form, found.splits > 1) == (form, splits)


@pytest.mark.parametrize("often", [False, True])
def test_rows_that_are_read_often_are_held(often):
    """The third reduction waits for two others: as a loop, a row would be read four times."""
    body = """
        %0 = load x[i, j] : f32
        %1 = reduce.max[j] %0 : f32
        %2 = sub %0 %1 : f32
        %3 = reduce.sum[j] %2 : f32
        """ + ("""
        %4 = mul %2 %3 : f32
        %5 = reduce.max[j] %4 : f32
        store y[i] %5""" if often else "store y[i] %3")  # fmt: skip
    sizes = {"x": ("f32", 100_000, 130), "y": ("f32", 100_000)}
    made = case("thrice", "i:100000, j:130", body, **sizes)
    found = schedule(made.comp, made.buffers, H100)
    assert found.form == ("persistent" if often else "looped")


def test_rows_of_which_nothing_is_read_are_no_tiles():
    """Sums of a row's value where an index hits: of 64 rows at a time, the values of each row alone
    spilled 7 KB a thread."""
    values = [f"v{k}" for k in range(40)]
    loads = "".join(f"%{k} = load {v}[i] : f32\n" for k, v in enumerate(values))
    powers = "".join(f"%{40 + k} = exp %{k} : f32\n" for k in range(40))
    sums = "".join(f"%{80 + k} = add %{79 + k if k else 40} %{40 + k} : f32\n" for k in range(40))
    body = loads + powers + sums + """
        %120 = load at[i] : i64
        %121 = index j : i64
        %122 = eq %120 %121 : b1
        %123 = const 0.0 : f32
        %124 = where %122 %119 %123 : f32
        %125 = reduce.sum[j] %124 : f32
        store y[i] %125
        """
    buffers = {v: ("f32", 127) for v in values}
    hits = case("hits", "i:127, j:128256", body, **buffers, at=("i64", 127), y=("f32", 127))
    chosen = schedule(hits.comp, hits.buffers, H100)
    assert chosen.block_rows == 1
    (source, *_) = generate(hits.comp, hits.buffers, chosen).sources
    assert resources(compile_source(source, 90)).spill_bytes == 0


def test_rows_that_are_passed_over_once_leave_room_for_others():
    """The large block is for what comes back to a row while it is in cache."""
    many = (cases.cross_entropy(8192, 32768), cases.exponentials(8192, 32768),
            cases.softmax(8192, 32768))  # fmt: skip
    found = [schedule(c.comp, c.buffers, H100) for c in many]
    assert [(f.form, f.num_warps) for f in found] == [("looped", w) for w in (8, 8, 32)]


def test_lanes_lie_along_the_nearer_axis_where_none_is_contiguous():
    """Every sixteenth element of rows of 4096: the sums alone are next to each other."""
    one = case("near", "i:1024, j:256", "%0 = load x[i, 16*j] : f32\n"
               "%1 = reduce.sum[j] %0 : f32\nstore y[i] %1",
               x=("f32", 1024, 4096), y=("f32", 1024))  # fmt: skip
    assert schedule(*_comp(one), H100).block_columns == 256


def test_a_small_tensor_is_reduced_across_its_rows_by_many_programs_of_one_kernel():
    for rows, columns in ((256, 1024), (64, 1024)):
        one = reduction("max", rows, columns, dim=0)
        found = schedule(one.comp, one.buffers, H100)
        assert (found.form, found.splits, found.block_rows) == ("persistent", 1, 16)


@pytest.mark.parametrize("shape", [("s0", "s1"), ("s0", 40000), (7, "s1")])
def test_rows_of_sizes_that_are_known_at_the_call_are_loops(shape):
    one = cases.softmax(*shape, sizes={"s0": 7000, "s1": 100000})
    found = schedule(one.comp, one.buffers, H100, one.sizes)
    assert found.form == "looped" and bundle_of(one, found).sources


def test_loads_run_ahead_as_far_as_shared_memory_allows():
    for inputs, stages in ((1, 4), (3, 3), (6, 1)):
        names = [f"x{k}" for k in range(inputs)]
        loads = "\n".join(f"%{k} = load {n}[i] : f32" for k, n in enumerate(names))
        sums = "\n".join(f"%{inputs + k} = add %{inputs + k - 1 if k else 0} %{k} : f32"
                         for k in range(inputs))  # fmt: skip
        body = f"{loads}\n{sums}\n%{2 * inputs} = reduce.sum[i] %{2 * inputs - 1} : f32\n"
        one = case("all", "i:16777216", f"{body}store y[] %{2 * inputs}", y=("f32",),
                   **{n: ("f32", 1 << 24) for n in names})  # fmt: skip
        found = schedule(*_comp(one), H100)
        assert (found.stages, found.splits > 1) == (stages, True)


def test_a_transposition_gets_a_square_tile_of_the_two_axes():
    found = schedule(*_comp(cases.transposed_copy(300, 300)), H100)
    assert min(found.block_rows, found.block_columns) >= 32


@pytest.mark.parametrize("channels,dtype,tile", [
    (2, "f16", (8, 512)), (16, "bf16", (64, 64)), (64, "bf16", (64, 64)),
])  # fmt: skip
def test_channels_of_several_axes_are_one_side_of_a_tile(channels, dtype, tile):
    """Pixels are read at neighbouring channels, written along themselves."""
    found = schedule(*_comp(cases.channels_first(2, 4, channels, 4096, dtype)), H100)
    assert (found.block_rows, found.block_columns) == tile
    assert found.columns == ("p",) and len(found.rows) == 3


def test_a_tile_is_no_wider_than_its_channels():
    found = schedule(*_comp(cases.transposed_copy(4096, 16)), H100)
    assert (found.block_rows, found.block_columns) == (64, 16)


def test_a_tile_is_turned_along_what_moves_most():
    """Not along the numbers of rows, which are read across, too."""
    one = case("rows", "n:64, c:32, h:64, w:128", """
      %0 = load x[n, h, w, c] : bf16
      %1 = load s[n, c, h] : bf16
      %2 = add %0 %1 : bf16
      %3 = load b[c] : bf16
      %4 = add %2 %3 : bf16
      store y[n, c, h, w] %4""", x=("bf16", 64, 64, 128, 32), s=("bf16", 64, 32, 64),
      b=("bf16", 32), y=("bf16", 64, 32, 64, 128))  # fmt: skip
    assert schedule(*_comp(one), H100).rows[-1] == "w"


def test_groups_of_few_channels_go_on_in_the_next():
    body = """%0 = load x[n, p, 8*g+c] : bf16
      %1 = load s[n, g] : bf16
      %2 = add %0 %1 : bf16
      %3 = load b[8*g+c] : bf16
      %4 = add %2 %3 : bf16
      store y[n, p, 8*g+c] %2
      store z[n, g, c, p] %4"""
    image = "bf16", 64, 1024, 64
    one = case("groups", "n:64, g:8, c:8, p:1024", body, x=image, s=("bf16", 64, 8), y=image,
               b=("bf16", 64), z=("bf16", 64, 8, 8, 1024))  # fmt: skip
    found = schedule(*_comp(one), H100)
    assert (found.rows, found.columns) == (("n", "p"), ("g", "c"))


def test_computed_positions_are_read_along_their_axis():
    assert schedule(*_comp(cases.enlarged(64, 32, 1024)), H100).columns == ("p",)


def test_weights_of_channels_are_one_number_for_a_block():
    found = schedule(*_comp(cases.group_norm(128, 8, 8, 4096)), H100)
    assert (found.form, found.block_columns, found.num_warps) == ("looped", 4096, 16)


@pytest.mark.parametrize(("pixels", "dtype", "stages"), [
    (4096, "f32", 4), (4096, "bf16", 4), (47 * 47, "bf16", 1), (47 * 47, "f32", 1),
])  # fmt: skip
def test_numbers_for_each_lane_are_not_copied_ahead(pixels: int, dtype: str, stages: int):
    one = cases.channel_sums(128, 8, 8, pixels, dtype)
    assert schedule(*_comp(one), H100).stages == stages


@pytest.mark.parametrize(("columns", "tile"), [(128, (32, 8)), (256, (16, 16)), (512, (4, 2)),
                                               (1024, (4, 4))])  # fmt: skip
def test_sums_over_short_rows_run_ahead_in_tiles_of_one_layout(columns, tile):
    found = schedule(*_comp(cases.layer_norm_backward(65536, columns)), H100)
    assert (found.block_rows, found.num_warps) == tile and found.stages > 1


def test_long_rows_of_odd_length_get_a_row_for_each_program():
    found = schedule(*_comp(cases.row_scaled(64, 50257)), H100)
    assert found.form == "grid" and found.block_rows == 1 and found.rows


@pytest.mark.parametrize("columns, block", [(4000, 1024), (1000, 1024), (1480, 512), (768, 256)])
def test_a_number_for_each_row_is_read_once_a_block(columns, block):
    """Blocks reach beyond the end of a row by a sixteenth of it at most."""
    found = schedule(*_comp(cases.row_scaled(8192, columns)), H100)
    assert found.rows and found.block_columns == block


def test_rows_much_shorter_than_their_blocks_are_one_dimension():
    assert not schedule(*_comp(cases.row_scaled(8192, 520)), H100).rows


@pytest.mark.parametrize("columns", [2, 4, 8, 13])
@pytest.mark.parametrize("dtype", ["f32", "bf16", "f64"])
def test_no_two_warps_share_rows_of_few_columns(dtype, columns):
    """Each thread has 16 bytes along the rows, or more."""
    found = schedule(*_comp(reduction("max", columns, 1 << 22, dtype, dim=0)), H100)
    assert found.form == "persistent"
    assert found.block_rows * dtypes.BY_NAME[dtype].bytes >= 32 * found.num_warps * 16


@pytest.mark.parametrize("terms", [17, 24, 31, 32])
@pytest.mark.parametrize("inner", [1024, 1001])
@pytest.mark.parametrize("dtype", ["f32", "bf16", "f64"])
def test_up_to_32_terms_across_memory_are_reduced_within_a_warp(terms, inner, dtype):
    """Threads lie along what is kept, with sums of their own: no warp waits for another."""
    one = cases.middle("sum", 512, terms, inner, dtype)
    (source,) = bundle_of(one).sources
    assert schedule(*_comp(one), H100).num_warps == source.num_warps == 1
    compiled = compile_source(source, 90)
    cost, ptx = resources(compiled), compiled.asm["ptx"]
    assert cost.spill_bytes == 0 and cost.registers <= 176 and "bar.sync" not in ptx
    if inner == 1024:
        assert cost.wide_loads == ptx.count("ld.global") and ptx.count("shfl") <= 16


_LAYOUT = re.compile(r"threadsPerWarp = \[(\d+), \d+\].*?order = \[0, 1\]")


@pytest.mark.parametrize("monoid", ["sum", "argmax", "logsumexp"])
@pytest.mark.parametrize(("outer", "length", "inner"), [
    (64, 1000, 333), (1024, 77, 77), (512, 24, 1001), (16, 5000, 13),
])  # fmt: skip
def test_lanes_lie_along_an_odd_number_of_neighbours(monoid, outer, length, inner):
    """The axis before is a dimension of the grid: a remainder tells Triton of no neighbours."""
    one = cases.prepared(cases.middle(monoid, outer, length, inner))
    found = schedule(*_comp(one), H100)
    assert (found.apart, found.rows, found.columns) == (("i",), ("j",), ("k",))
    assert inner / (-(-inner // found.block_rows) * found.block_rows) >= 0.75
    source = bundle_of(one).sources[0]
    assert "%" not in source.text.partition(f"def {source.name}(")[2]
    (layout, *_) = _LAYOUT.findall(compile_source(source, 90).asm["ttgir"])
    assert int(layout) == min(32, found.block_rows)


@pytest.mark.parametrize(("monoid", "length"), [("sum", 128), ("sum", 1000), ("logaddexp", 128)])
def test_scans_have_lanes_along_an_odd_number_of_neighbours_too(monoid, length):
    one = cases.middle_scan(monoid, 64, length, 251)
    assert schedule(*_comp(one), H100).apart == ("i",)
    compiled = compile_source(bundle_of(one).sources[0], 90)
    assert resources(compiled).spill_bytes == 0
    assert int(_LAYOUT.findall(compiled.asm["ttgir"])[0]) >= 16


@pytest.mark.parametrize("monoid", ["sum", "logaddexp"])
@pytest.mark.parametrize(("rows", "columns"), [(5, 7), (100, 7), (3, 20001)])
def test_a_scan_has_all_rows_of_its_block(monoid, rows, columns):
    """Of [1, 8] in blocks of 8 rows Triton made wrong sums, and of 100 rows no kernel at all."""
    one = cases.scan_of_equal_rows(monoid, rows, columns)
    compiled = compile_source(bundle_of(one).sources[0], 90)
    scans = re.findall(r"tt\.scan.*?\) -> \(?tensor<(\d+)x", compiled.asm["ttgir"], re.DOTALL)
    stored = re.findall(r"tt\.store .*? : tensor<(\d+)x\d+x!tt", compiled.asm["ttgir"])
    assert scans and set(scans) <= set(stored)


@pytest.mark.parametrize(("rows", "columns", "form", "warps"), [
    (4096, 16001, "looped", 8), (100, 16001, "looped", 32), (4096, 8000, "persistent", 8),
])  # fmt: skip
def test_rows_of_many_live_values_are_read_again(rows, columns, form, warps):
    """Registers do not hold them: 592 bytes of each thread spilled."""
    one = cases.softmax_gradients(rows, columns)
    chosen = schedule(*_comp(one), H100)
    assert (chosen.form, chosen.num_warps) == (form, warps)
    assert resources(compile_source(bundle_of(one).sources[0], 90)).spill_bytes == 0


def test_few_bytes_of_which_much_is_made_do_not_spill():
    """Columns of three bytes, beside each other's neighbours, and fourteen integers of each."""
    many = 14
    made = [f"%{k + 2} = const {2 * k + 3} : i32" for k in range(many)]
    made += [f"%{many + k + 2} = mul %1 %{k + 2} : i32" for k in range(many)]
    joined = [f"%{2 * many + k + 2} = bit_xor %{many + 2 if k == 0 else 2 * many + k + 1} "
              f"%{2 * many + 1 - k} : i32" for k in range(many)]  # fmt: skip
    last = 3 * many + 1
    body = ["%0 = load x[j, i] : u8", "%1 = cast %0 : i32", *made, *joined,
            f"%{last + 1} = reduce.max[j] %{last} : i32", f"store y[i] %{last + 1}"]  # fmt: skip
    one = case("made", f"i:{1 << 18}, j:3", "\n".join(body), x=("u8", 3, 1 << 18),
               y=("i32", 1 << 18))  # fmt: skip
    assert schedule(*_comp(one), H100).points_per_thread <= 256 // many
    assert resources(compile_source(bundle_of(one).sources[0], 90)).spill_bytes == 0


@pytest.mark.parametrize(("rows", "dtype", "held"), [(8192, "bf16", 32), (264, "bf16", 16),
                                                     (8192, "f32", 16)])  # fmt: skip
@pytest.mark.parametrize("columns", [2560, 4096, 5120, 8192])
def test_many_rows_of_16_bits_have_few_warps_each(columns, rows, dtype, held):
    """Others go on while the warps of a row wait for each other."""
    chosen = schedule(*_comp(cases.softmax(rows, columns, dtype=dtype)), H100)
    assert (chosen.form, chosen.points_per_thread) == ("persistent", held)


@pytest.mark.parametrize("columns", [2560, 5120, 8192])
def test_rows_of_many_reductions_have_fewer(columns):
    one = case("norm", f"i:8192, j:{columns}", """
      %0 = load x[i, j] : bf16
      %1 = cast %0 : f32
      %2 = reduce.welford[j] %1 : f32
      %3 = pick.0 %2 : f32
      %4 = sub %1 %3 : f32
      %5 = cast %4 : bf16
      store y[i, j] %5
    """, x=("bf16", 8192, columns), y=("bf16", 8192, columns))  # fmt: skip
    assert schedule(*_comp(one), H100).points_per_thread == 64
    assert resources(compile_source(bundle_of(one).sources[0], 90)).spill_bytes == 0


@pytest.mark.parametrize(("pixels", "rows"), [(512 * 512, 64), (321 * 321, 32)])
def test_losses_of_pixels_have_registers_for_their_reductions(pixels, rows):
    """A warp has few rows. With 128 of them it took 255 registers, and spilled."""
    one = cases.loss_of_pixels(12, 19, pixels)
    chosen = schedule(*_comp(one), H100)
    assert chosen.form == "persistent" and chosen.block_rows == rows * chosen.num_warps
    cost = resources(compile_source(bundle_of(one).sources[0], 90))
    assert cost.registers <= 80 and cost.spill_bytes == 0


@pytest.mark.parametrize("outer", [64, 4096])
def test_what_is_made_of_a_scan_is_stored_before_it(outer):
    """Triton 3.6 fails otherwise, as stored_steps says."""
    source = bundle_of(cases.stored_steps(outer, 16, 64)).sources[0]
    compile_source(source, 90)
    stored = [int(v) for v in re.findall(r"tl.store\(.*, v(\d+)\)", source.text)]
    assert stored == [12, 9, 7, 6]


@pytest.mark.parametrize(("outer", "length", "inner"), [
    (64, 1000, 334),  # two neighbours are known
    (70000, 77, 77),  # more than the grid has in that dimension
    (50000, 20, 3),  # a program would have 80 points
    ("s0", 1000, 333),
])  # fmt: skip
def test_rows_are_one_dimension_of_the_grid_otherwise(outer, length, inner):
    one = cases.middle("sum", outer, length, inner)
    found = schedule(one.comp, one.buffers, H100, {"s0": 64})
    assert not found.apart and found.rows == ("i", "j")


def test_rows_that_are_read_as_one_are_one():
    """Only what is stored knows two axes."""
    one = case("turned", "k:1000, i:64, j:333", "%0 = load x[k, i, j] : f32\n"
               "%1 = reduce.sum[k] %0 : f32\nstore y[j, i] %1",
               x=("f32", 1000, 64, 333), y=("f32", 333, 64))  # fmt: skip
    found = schedule(*_comp(one), H100)
    assert found.rows == ("i", "j") and not found.apart


def test_one_kernel_of_narrower_blocks_comes_before_two():
    one = cases.middle("sum", 64, 1000, 333)
    assert len(bundle_of(one).sources) == 1
    assert len(bundle_of(cases.middle("sum", 4, 8000, 333)).sources) == 2


def test_what_a_warp_reads_at_a_time_waits_in_registers():
    """Four tensors of 32 terms: a quarter of the rows of one."""
    names = [f"x{k}" for k in range(4)]
    loads = "\n".join(f"%{k} = load {n}[i, k, j] : f32" for k, n in enumerate(names))
    one = case("four", "i:512, k:32, j:1024", f"""{loads}
      %4 = mul %0 %1 : f32
      %5 = mul %2 %3 : f32
      %6 = add %4 %5 : f32
      %7 = reduce.sum[k] %6 : f32
      store y[i, j] %7""", y=("f32", 512, 1024),
      **{n: ("f32", 512, 32, 1024) for n in names})  # fmt: skip
    found, single = schedule(*_comp(one), H100), cases.middle("sum", 512, 32, 1024)
    assert found.num_warps == 1 and found.block_rows < schedule(*_comp(single), H100).block_rows
    assert resources(compile_source(bundle_of(one).sources[0], 90)).spill_bytes == 0


@pytest.mark.parametrize(("rows", "deep", "shares"), [
    (160, 4, 3), (64, 4, 3), (132, 4, 1), (260, 4, 1), (160, 1, 1),
])  # fmt: skip
def test_rows_of_much_work_are_shared_where_a_wave_would_leave_the_device_idle(rows, deep, shares):
    chain = "\n".join(f"%{k} = tanh %{k - 1} : f32" for k in range(1, deep + 1))
    one = case("heavy", f"i:{rows}, k:6138", f"""%0 = load x[i, k] : f32
      {chain}
      %{deep + 1} = reduce.sum[k] %{deep} : f32
      store y[i] %{deep + 1}""", x=("f32", rows, 6138), y=("f32", rows))  # fmt: skip
    found = schedule(*_comp(one), H100)
    assert found.form == ("looped" if shares > 1 else "persistent") and found.splits == shares
    assert len(bundle_of(one).sources) == 1 + (shares > 1)


def test_points_of_few_bytes_are_many_in_a_block():
    def copy(dtype: str) -> Schedule:
        body = f"%0 = load x[i] : {dtype}\nstore y[i] %0"
        copied = case("copy", "i:33554432", body, x=(dtype, 1 << 25), y=(dtype, 1 << 25))
        return schedule(*_comp(copied), H100)

    assert copy("bf16").block_columns == 2 * copy("f32").block_columns


def test_contiguous_tensors_are_one_dimension():
    found = schedule(*_comp(cases.gelu_mul(8192, 768)), H100)
    assert found.rows == () and len(found.columns) == 1


MANY = [
    cases.gelu_mul(100, 768),
    cases.softmax(100, 768),
    cases.softmax(100, 20000),
    cases.layer_norm_backward(1000, 768),
    reduction("welford", 2, 100000),
    reduction("sum", 5000, 64, dim=0),
]


@pytest.mark.parametrize("one", MANY, ids=lambda c: c.name)
def test_every_candidate_is_valid_and_can_be_generated(one: Case):
    accesses = addressed(one.comp, one.buffers)
    found = list(candidates(accesses, {}, H100.units))
    assert found[0] == schedule(one.comp, one.buffers, H100)
    assert 2 < len(set(found)) == len(found) <= 6
    for near in found:
        assert valid(near, accesses)
        assert bundle_of(one, near).sources


@pytest.mark.parametrize(
    ("one", "change"),
    [
        (cases.softmax(9, 768), {"block_columns": 512}),  # the row does not fit
        (cases.softmax(9, 768), {"form": "looped", "splits": 2}),  # softmax needs whole rows
        (cases.softmax(9, 768), {"form": "grid"}),
        (cases.softmax(9, 768), {"columns": ()}),
        (cases.softmax(9, 768), {"num_warps": 0}),
        (cases.softmax(9, 768), {"num_warps": 64}),
        (cases.layer_norm_backward(9, 768), {"form": "looped"}),
        (cases.layer_norm_backward(9, 768), {"stages": 0}),
        (cases.layer_norm_backward(9, 16384), {"stages": 3}),  # its rows fill shared memory
        (cases.gelu_mul(9, 768), {"form": "persistent"}),
        (cases.gelu_mul(9, 768), {"splits": 2}),
        (cases.middle("sum", 64, 1000, 333), {"apart": ()}),
        (cases.middle("sum", 64, 1000, 333), {"apart": ("j",), "rows": ("i",)}),
        (cases.gelu_mul(9, 768), {"apart": ("i",)}),
    ],
)
def test_invalid_schedules_are_refused(one: Case, change: dict):
    wrong = replace(schedule(one.comp, one.buffers, H100), **change)
    assert not valid(wrong, addressed(one.comp, one.buffers))
    with pytest.raises(InvalidIR, match="cannot be tiled"):
        generate(one.comp, one.buffers, wrong)


@pytest.mark.parametrize("columns", [1001, 100003])
@pytest.mark.parametrize("dim", [0, 1])
def test_positions_of_extremes_have_32_bits_until_they_are_stored(columns: int, dim: int):
    """Lanes that meet columns in their order keep the column where something is better."""
    shape = (3, columns) if dim else (columns, 3)
    one = reduction("argmax", *shape, dim=dim)
    bundle = registry.bundle_of(one.comp, one.buffers, H100, one.sizes)
    sources = [s.text.partition("\ndef ")[2].partition(f"def {s.name}(")[2] for s in bundle.sources]
    wide = [line for text in sources for line in text.splitlines() if "int64" in line]
    assert len(wide) == 1 and "_1.to(tl.int64)" in wide[0]
    assert all(b.dtype != dtypes.i64 for b in bundle.scratch)
    assert all(("better = " in s) == ("for block" in s) for s in sources)


def test_a_wide_grid_of_columns_is_refused():
    """The second grid dimension has 65535 blocks at most; of whichever there are fewer."""
    one = case("wide", "i:70000, j:3000000", "%0 = load b[j] : f32\nstore y[i, j] %0",
               b=("f32", 3000000), y=("f32", (70000, 3000000), (4000000, 1)))  # fmt: skip
    wide = Schedule("grid", ("i",), ("j",), 1, 32, 1)
    assert not valid(wide, addressed(one.comp, one.buffers))


def _comp(one: Case):
    return one.comp, one.buffers


@pytest.mark.parametrize(("device", "early"), [("H100", True), ("A100", False)])
def test_kernels_begin_early_where_the_device_can(device: str, early: bool):
    made = cases.layer_norm_backward(4096, 768)
    bundle = registry.bundle_of(made.comp, made.buffers, named_target(device), made.sizes)
    assert len(bundle.sources) == 2
    for source in bundle.sources:
        first = source.text.partition(f"def {source.name}(")[2].splitlines()[1].strip()
        assert (source.early, first == "_await_previous()") == (early, early)


@pytest.mark.parametrize(("columns", "aligned"), [(4, False), (16, True)])
def test_rows_begin_early_in_blocks_of_a_vector_and_more(columns: int, aligned: bool):
    """In a block of four columns of 16 bits a row may begin behind the first block, which alone is
    masked: columns of the row before were counted."""
    one = reduction("sum", 5, 131, "f16")
    (source,) = bundle_of(one, Schedule("looped", ("i",), ("j",), 1, columns, 4)).sources
    assert ("row_shift" in source.text) == aligned


def test_few_rows_across_memory_are_held():
    """Columns that are read again after a reduction, of too few rows for loops to fill a device."""
    middle = """%0 = load x[i, k, j] : f32
      %1 = reduce.max[k] %0 : f32
      %2 = sub %0 %1 : f32
      store y[i, k, j] %2"""

    def form(images: int, length: int) -> str:
        one = case("less", f"i:{images}, k:{length}, j:100", middle,
                   x=("f32", images, length, 100), y=("f32", images, length, 100))  # fmt: skip
        return schedule(one.comp, one.buffers, H100).form

    assert form(128, 333) == "persistent"
    assert form(4096, 1333) == form(128, 3333) == "looped"


@pytest.mark.parametrize(
    ("length", "inner", "tile"),
    [(48, 4096, (32, 64, 1)), (96, 3136, (32, 128, 2)), (768, 196, (16, 1024, 8)),
     (69, 20467, (64, 128, 8))],
)  # fmt: skip
@pytest.mark.parametrize("last", [False, True])
def test_many_rows_across_memory_are_in_few_warps(length: int, inner: int, tile, last: bool):
    """Threads of several warps meet in shared memory at every reduction. `last`: the result lies
    along the columns, which are turned in registers."""
    less = """%0 = load x[i, k, j] : f32
      %1 = reduce.max[k] %0 : f32
      %2 = sub %0 %1 : f32
      """ + ("store y[i, j, k] %2" if last else "store y[i, k, j] %2")
    images = 24_000_000 // (length * inner)
    shape = (images, inner, length) if last else (images, length, inner)
    one = case("less", f"i:{images}, k:{length}, j:{inner}", less,
               x=("f32", images, length, inner), y=("f32", *shape))  # fmt: skip
    found = schedule(one.comp, one.buffers, H100)
    assert found.form == "persistent"
    assert (found.block_rows, found.block_columns, found.num_warps) == tile


def test_rows_that_are_read_along_and_written_across_have_more_warps():
    """Channels last to first."""
    less = """%0 = load x[i, j, k] : f32
      %1 = reduce.max[k] %0 : f32
      %2 = sub %0 %1 : f32
      store y[i, k, j] %2"""
    one = case("less", "i:32, k:128, j:16641", less,
               x=("f32", 32, 16641, 128), y=("f32", 32, 128, 16641))  # fmt: skip
    found = schedule(one.comp, one.buffers, H100)
    assert (found.block_rows, found.block_columns, found.num_warps) == (32, 128, 8)


def test_sums_over_rows_beside_each_other_fill_sectors():
    """A row and a column of a matrix, whose memory runs along what is a row here."""
    both = """%0 = load a[k, j] : f32
      %1 = load r[k] : f32
      %2 = mul %0 %1 : f32
      %3 = reduce.sum[k] %2 : f32
      %4 = mul %0 %3 : f32
      %5 = reduce.sum[j] %4 : f32
      store x[j] %3
      store y[k] %5"""
    one = case("both", "j:24593, k:509", both, a=("f32", 509, 24593), r=("f32", 509),
               x=("f32", 24593), y=("f32", 509))  # fmt: skip
    found = schedule(one.comp, one.buffers, H100)
    assert (found.block_rows, found.block_columns, found.num_warps) == (16, 512, 8)
    assert found.stages == 1


def test_a_loop_across_memory_leaves_most_lanes_at_work():
    total = """%0 = load x[i, k, j] : f32
      %1 = reduce.sum[k] %0 : f32
      store y[i, j] %1"""
    one = case("total", "i:287, k:67, j:131", total,
               x=("f32", 287, 67, 131), y=("f32", 287, 131))  # fmt: skip
    found = schedule(one.comp, one.buffers, H100)
    assert found.form == "looped" and -(-67 // found.block_columns) * found.block_columns <= 96


def test_what_is_read_apart_has_few_points_for_each_thread():
    """Means of 2 x 2."""
    pairs = """%0 = load x[i, 2*j, 2*k] : f32
      %1 = load x[i, 2*j, 2*k+1] : f32
      %2 = add %0 %1 : f32
      store y[i, j, k] %2"""
    one = case("pairs", "i:1024, j:128, k:128", pairs,
               x=("f32", 1024, 256, 256), y=("f32", 1024, 128, 128))  # fmt: skip
    found = schedule(one.comp, one.buffers, H100)
    assert found.block_rows * found.block_columns == 512


@pytest.mark.parametrize(("length", "form"), [(48, "persistent"), (333, "looped")])
def test_long_sums_across_memory_are_loops(length: int, form: str):
    """Nothing is read again, and loads need no registers but those of the next block."""
    total = """%0 = load x[i, k, j] : f32
      %1 = reduce.sum[k] %0 : f32
      store y[i, j] %1"""
    one = case("total", f"i:64, k:{length}, j:1000", total,
               x=("f32", 64, length, 1000), y=("f32", 64, 1000))  # fmt: skip
    assert schedule(one.comp, one.buffers, H100).form == form


def test_a_mask_of_columns_is_read_once_for_a_block():
    masked = """%0 = load x[i, k, j] : f32
      %1 = load m[i, k] : f32
      %2 = mul %0 %1 : f32
      %3 = reduce.sum[k] %2 : f32
      store y[i, j] %3"""
    one = case("masked", "i:64, j:150, k:333", masked,
               x=("f32", 64, 333, 150), m=("f32", 64, 333), y=("f32", 64, 150))  # fmt: skip
    found = schedule(one.comp, one.buffers, H100)
    assert found.apart == ("i",) and found.rows == ("j",)


@pytest.mark.parametrize(("groups", "channels", "apart"), [
    (16, 5, ()), (3, 27, ("b",)), (27, 3, ("b",)), (1, 81, ("b",))])  # fmt: skip
def test_groups_of_channels_that_follow_each_other_are_rows_together(groups, channels, apart):
    """Eighty are no odd number; of 81, one image's channels are a program's."""
    body = f"""%0 = load x[b, k, {channels}*g+c] : f32
      %1 = load m[b, c] : f32
      %2 = mul %0 %1 : f32
      %3 = reduce.sum[k] %2 : f32
      store y[b, {channels}*g+c] %3"""
    both = groups * channels
    one = case("grouped", f"b:64, g:{groups}, c:{channels}, k:2494", body,
               x=("f32", 64, 2494, both), m=("f32", 64, channels), y=("f32", 64, both))  # fmt: skip
    found = schedule(one.comp, one.buffers, H100)
    assert found.apart == apart
    assert found.rows[-1] == ("c" if channels > 1 else "g")
    assert groups == 1 or "g" in found.rows


def test_shares_are_equal_and_enough():
    from torchweld.templates.pointwise_reduce.gpu.shares import _nearest_shares

    assert [_nearest_shares(512, n) for n in (22, 16, 40, 600)] == [32, 16, 32, 512]
    assert _nearest_shares(2000, 176) == 200
    assert _nearest_shares(1009, 264) == 264  # a prime number


def test_few_long_rows_that_begin_anywhere_have_twice_the_threads():
    """One or two rows on a multiprocessor, which are read again after the reduction."""
    few, many = (schedule(c.comp, c.buffers, H100)
                 for c in (cases.softmax(224, 24642), cases.softmax(4096, 24642)))  # fmt: skip
    assert (few.form, few.num_warps, few.block_columns) == ("looped", 16, 4096)
    assert (many.num_warps, many.block_columns) == (8, 2048)


@pytest.mark.parametrize(
    ("rows", "columns", "tile"),
    [(160291, 157, (2, 256, 1)), (75573, 333, (1, 512, 1)), (10381, 101, (4, 128, 1)),
     (98304, 256, (4, 256, 4))],
)  # fmt: skip
def test_one_warp_has_rows_that_begin_anywhere(rows: int, columns: int, tile):
    """Lanes of several would be beside each other on one row, and meet in shared memory."""
    found = schedule(*_comp(cases.softmax(rows, columns)), H100)
    assert (found.block_rows, found.block_columns, found.num_warps) == tile


@pytest.mark.parametrize(("logarithms", "rows"), [(1, 8), (4, 2)])
def test_rows_of_much_work_are_few_in_a_program(logarithms: int, rows: int):
    logs = "\n".join(f"%{k + 1} = log %{k} : f32" for k in range(logarithms))
    body = f"%0 = load x[i, j] : f32\n{logs}\n%{logarithms + 1} = reduce.sum[j] %{logarithms} : f32"
    one = case("logs", "i:100000, j:101", f"{body}\nstore y[i] %{logarithms + 1}",
               x=("f32", 100000, 101), y=("f32", 100000))  # fmt: skip
    found = schedule(one.comp, one.buffers, H100)
    assert (found.block_rows, found.block_columns, found.num_warps) == (rows, 128, 1)


@pytest.mark.parametrize(
    ("pixels", "dtype", "tile"),
    [(1089, "f32", (1024, 4, 1)), (1024, "f32", (2048, 8, 4)), (1089, "bf16", (4096, 8, 4))],
)  # fmt: skip
def test_rows_that_begin_anywhere_are_not_copied_ahead(pixels: int, dtype: str, tile):
    """Of four bytes, by copies of four bytes each. Other programs have loads under way instead."""
    total = f"%0 = load x[n, c, p] : {dtype}\n%1 = cast %0 : f32\n%2 = mul %1 %1 : f32\n" + \
        "%3 = reduce.sum[n, p] %2 : f32\nstore y[c] %3"  # fmt: skip
    one = case("total", f"c:96, n:64, p:{pixels}", total,
               x=(dtype, 64, 96, pixels), y=("f32", 96))  # fmt: skip
    found = schedule(one.comp, one.buffers, H100)
    assert (found.block_columns, found.num_warps, found.stages) == tile and found.splits > 1


@pytest.mark.parametrize(("rows", "programs"), [(4000, 250), (300, 132)])
def test_many_long_rows_beside_sums_over_them_have_two_programs(rows: int, programs: int):
    body = """%0 = load x[i, j] : f32
      %1 = reduce.min[j] %0 : f32
      %2 = reduce.sum[i] %0 : f32
      store y[i] %1
      store z[j] %2"""
    one = case("both", f"i:{rows}, j:3000", body, x=("f32", rows, 3000), y=("f32", rows),
               z=("f32", 3000))  # fmt: skip
    assert schedule(one.comp, one.buffers, H100).splits == programs
