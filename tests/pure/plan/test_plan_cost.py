"""What the cost model must get right: bytes, passes, lanes, idle units."""

from __future__ import annotations

from dataclasses import replace

import pytest
from plan_programs import H100

from torchweld.core.dtypes import f32
from torchweld.ir.frame import frame_of
from torchweld.ir.nodes import Buffer
from torchweld.ir.parser import parse_comp
from torchweld.ir.passes import passes
from torchweld.targets.find import named_target, target_of
from torchweld.templates.pointwise_reduce.gpu.default import schedule
from torchweld.templates.pointwise_reduce.price import cost


def _buffers(**shapes) -> dict[str, Buffer]:
    strides = {n: tuple(_suffix(s, k) for k in range(len(s))) for n, s in shapes.items()}
    return {n: Buffer(n, s, f32, strides[n]) for n, s in shapes.items()}


def _suffix(shape, k: int) -> int:
    product = 1
    for extent in shape[k + 1 :]:
        product *= extent
    return product


def _copy(source: str):
    return parse_comp(f"""comp copy [i:2048, j:2048] {{
      %0 = load x[{source}] : f32
      store y[i, j] %0
    }}""")


SQUARE = {"x": (2048, 2048), "y": (2048, 2048)}


def test_bytes_are_counted_once_per_buffer():
    comp = parse_comp("""comp two [i:64, j:64] {
      %0 = load x[i, j] : f32
      %1 = load x[i, 0] : f32
      %2 = load w[j] : f32
      %3 = add %0 %1 : f32
      %4 = add %3 %2 : f32
      store y[i, j] %4
    }""")
    found = cost(comp, _buffers(x=(64, 64), w=(64,), y=(64, 64)), {}, H100)
    assert found.bytes_moved == 2 * 64 * 64 * 4 + 64 * 4


def test_a_transposition_costs_what_a_copy_does():
    """It is read in tiles that are turned in registers."""
    along, across = (cost(_copy(at), _buffers(**SQUARE), {}, H100) for at in ("i, j", "j, i"))
    assert across.seconds == along.seconds


def test_reading_parts_of_lines_costs_more():
    wide = {**SQUARE, "x": (SQUARE["x"][0], 4 * SQUARE["x"][1])}
    along, apart = (cost(_copy(at), _buffers(**wide), {}, H100) for at in ("i, j", "i, 4*j"))
    assert apart.seconds > 1.5 * along.seconds


def test_groups_of_few_channels_are_turned_together():
    """Eight channels are 32 bytes; of four, the next group's are beside them."""
    for channels in (8, 4):
        groups = 64 // channels
        comp = parse_comp(f"""comp last [g:{groups}, c:{channels}, p:4096] {{
          %0 = load x[g, c, p] : f32
          store y[p, {channels}*g+c] %0
        }}""")
        found = cost(comp, _buffers(x=(groups, channels, 4096), y=(4096, 64)), {}, H100)
        assert found.bytes_moved == 2 * 64 * 4096 * 4


@pytest.mark.parametrize(("groups", "channels"), [(16, 5), (80, 1), (1, 80)])
def test_groups_of_channels_are_rows_that_one_program_has(groups, channels):
    """Wherever channels are next to each other, as many programs have work."""
    comp = parse_comp(f"""comp power [b:11, g:{groups}, c:{channels}, p:2494] {{
      %0 = load x[b, p, {channels}*g+c] : f32
      %1 = load m[b, c] : f32
      %2 = sub %0 %1 : f32
      %3 = reduce.sum[p] %2 : f32
      %4 = div %2 %3 : f32
      store y[b, p, {channels}*g+c] %4
    }}""")
    buffers = _buffers(x=(11, 2494, 80), m=(11, channels), y=(11, 2494, 80))
    whole = parse_comp("""comp power [b:11, c:80, p:2494] {
      %0 = load x[b, p, c] : f32
      %1 = load m[b, c] : f32
      %2 = sub %0 %1 : f32
      %3 = reduce.sum[p] %2 : f32
      %4 = div %2 %3 : f32
      store y[b, p, c] %4
    }""")
    alike = cost(whole, {**buffers, **_buffers(m=(11, 80))}, {}, H100)
    assert cost(comp, buffers, {}, H100).seconds == pytest.approx(alike.seconds, rel=0.01)


@pytest.mark.parametrize(("columns", "lines"), [(4096, True), (64, False)])
def test_rows_that_store_across_lines_write_a_line_for_each_element(columns: int, lines: bool):
    """Unless a tile has rows and columns. In the last-level cache that is 5.9 times as much."""
    shape = 2**18 // columns, columns
    comp = parse_comp(SOFTMAX.format(rows=shape[0], columns=columns).replace("y[i, j]", "y[j, i]"))
    found = cost(comp, _buffers(x=shape, y=shape[::-1]), {}, H100)
    assert (found.bytes_moved > 6 * 2**20) == lines


SOFTMAX = """comp softmax [i:{rows}, j:{columns}] {{
      %0 = load x[i, j] : f32
      %1 = reduce.sum[j] %0 : f32
      %2 = div %0 %1 : f32
      store y[i, j] %2
    }}"""


def _row_kernel(rows: int, columns: int, device=H100):
    shape = (rows, columns)
    comp = parse_comp(SOFTMAX.format(rows=rows, columns=columns))
    return cost(comp, _buffers(x=shape, y=shape), {}, device)


def test_rows_that_do_not_fit_on_chip_are_read_again():
    narrow, wide = _row_kernel(8192, 8192), _row_kernel(512, 8192 * 16)
    assert narrow.bytes_moved == 2 * 8192 * 8192 * 4
    assert wide.bytes_moved == 3 * 8192 * 8192 * 4


def test_few_rows_leave_the_device_idle():
    assert _row_kernel(8, 8192).seconds > 0.5 * _row_kernel(128, 8192).seconds


def test_more_bandwidth_is_faster_and_launches_are_the_floor():
    slow = replace(H100, dram_bytes_per_s=1e12)
    assert _row_kernel(8192, 8192).seconds < _row_kernel(8192, 8192, slow).seconds
    assert _row_kernel(1, 8).seconds >= H100.launch_s


@pytest.mark.parametrize(("name", "row"), [("NVIDIA H100 80GB HBM3", "H100"), ("Tesla", "CUDA")])
def test_devices_are_found_by_name(name, row):
    assert named_target(name).name == row


def test_the_cpu_table_is_of_this_machine():
    table = target_of("cpu")
    assert table.kind == "cpu" and table.units >= 1 and table.llc_bytes > table.row_bytes > 0


TURNED = """comp turn [h:32, s:2048, d:64] {{
      %0 = load x[h, s, d] : f32
      %1 = load a[s, d] : f32
      %2 = {} %1 : f32
      %3 = mul %0 %2 : f32
      store y[h, s, d] %3
    }}"""


@pytest.mark.parametrize("device", [H100, target_of("cpu")], ids=["cuda", "cpu"])
def test_a_cosine_for_every_head_does_not_hide_behind_memory(device):
    buffers = _buffers(x=(32, 2048, 64), y=(32, 2048, 64), a=(2048, 64))
    comps = (parse_comp(TURNED.format(name)) for name in ("neg", "cos"))
    plain, cosine = (cost(comp, buffers, {}, device) for comp in comps)
    assert cosine.seconds > 1.1 * plain.seconds


def test_few_results_do_not_decide_along_which_axis_memory_is_read():
    """A maximum of each row is stored along the rows; the rows are read along the columns."""
    comp = parse_comp("""comp maximum [i:512, j:4096] {
      %0 = load x[i, j] : f32
      %1 = reduce.max[j] %0 : f32
      store m[i] %1
    }""")
    found = cost(comp, _buffers(x=(512, 4096), m=(512,)), {}, H100)
    assert found.bytes_moved == 512 * 4096 * 4 + 512 * 4


def test_units_share_a_row_unless_something_along_it_waits():
    """A bias gradient beside the pointwise work that makes it, against a softmax's shape."""
    text = """comp both [i:8, j:65536] {{
      %0 = load x[i, j] : f32
      %1 = mul %0 %0 : f32
      %2 = reduce.sum[j] %1 : f32
      %3 = add %1 %{} : f32
      store y[i, j] %3
      store s[i] %2
    }}"""
    buffers = _buffers(x=(8, 65536), y=(8, 65536), s=(8,))
    free, waiting = (cost(parse_comp(text.format(v)), buffers, {}, H100) for v in (0, 2))
    assert free.seconds < 0.5 * waiting.seconds


# Over the rows of x[i, j], which are many: each has its name, its text, and how many programs share
# the columns of a row.
PAIR = """%1 = reduce.max[i] %0 : f32
      %2 = sub %0 %1 : f32
      %3 = exp %2 : f32
      %4 = reduce.sum[i] %3 : f32
"""
OVER_ROWS = {
    "sum": "%1 = reduce.sum[i] %0 : f32\n store s[j] %1",
    "pair": PAIR + "store m[j] %1\n store s[j] %4",
    "logsumexp": PAIR + "%5 = log %4 : f32\n %6 = add %5 %1 : f32\n store s[j] %6",
    "argmax": "%1 = index i : i64\n %2 = reduce.argmax[i] %0 %1 : f32\n"
    "%3 = pick.0 %2 : f32\n store s[j] %3",
    "softmax": PAIR + "%5 = div %3 %4 : f32\n store y[i, j] %5",
    "deviation": "%1 = reduce.sum[i] %0 : f32\n %2 = sub %0 %1 : f32\n %3 = mul %2 %2 : f32\n"
    "%4 = reduce.sum[i] %3 : f32\n store s[j] %4",
}
SHARED = ("sum", "pair", "logsumexp", "argmax")


def _over_rows(name: str, rows: int, columns: int):
    body = f"%0 = load x[i, j] : f32\n{OVER_ROWS[name]}"
    comp = parse_comp(f"comp c [i:{rows}, j:{columns}] {{\n{body}\n}}")
    shapes = {"x": (rows, columns), "y": (rows, columns), "s": (columns,), "m": (columns,)}
    return comp, {n: b for n, b in _buffers(**shapes).items() if n in {*comp.reads, *comp.writes}}


@pytest.mark.parametrize("name", OVER_ROWS)
@pytest.mark.parametrize("shape", [(65537, 64), (8191, 515)])
def test_the_price_knows_what_programs_share(name, shape):
    """The kernel and its price ask one function."""
    comp, buffers = _over_rows(name, *shape)
    found = schedule(comp, buffers, H100)
    seconds = cost(comp, buffers, {}, H100).seconds
    total = cost(*_over_rows("sum", *shape), {}, H100).seconds
    assert (found.splits > 1) == (name in SHARED)
    assert (seconds < 1.2 * total) == (name in SHARED)


@pytest.mark.parametrize(("name", "walks"), [("logsumexp", 1), ("softmax", 2), ("deviation", 2)])
def test_a_pair_of_maximum_and_sum_is_one_pass_over_memory(name, walks):
    comp, buffers = _over_rows(name, 8192, 4096)
    assert len(passes(comp, frame_of(comp))) == walks
    whole = 8192 * 4096 * 4
    written = whole if name == "softmax" else 4096 * 4
    assert cost(comp, buffers, {}, H100).bytes_moved == walks * whole + written


def test_a_program_with_a_scan_across_memory_keeps_a_multiprocessor_busy():
    """Work around it is fused with it where there are as many programs as multiprocessors."""
    text = "comp c [i:6400, j:{}] {{\n%0 = load x[i, j] : f32\n%1 = scan.sum[i] %0 : f32\n"
    text += "store y[i, j] %1\n}}"
    copied = text.replace("%1 = scan.sum[i] %0 : f32\n", "").replace("%1", "%0")
    for columns, most in ((2048, 1.2), (500, 6.0)):
        buffers = _buffers(x=(6400, columns), y=(6400, columns))
        comps = (parse_comp(t.format(columns)) for t in (text, copied))
        scan, copy = (cost(comp, buffers, {}, H100) for comp in comps)
        assert scan.seconds < most * copy.seconds
