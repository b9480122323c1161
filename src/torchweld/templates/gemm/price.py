"""Predicted seconds of products: by the library, and in a kernel with their neighbours.

    start + waves of tiles / rate, or the operands' bytes at the rate of memory, whichever is longer
          + the epilogue: of the last wave in full, of those before as far as it is not hidden

One formula with the same meaning on both sides; the figures are the target's (targets/products.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import ceil, prod

from torchweld.core.once import Same
from torchweld.ir.access import Accesses
from torchweld.ir.contraction import Contraction, column_sums, operand
from torchweld.ir.memo import Memo
from torchweld.ir.nodes import (
    Buffer,
    Cast,
    Comp,
    Extern,
    Graph,
    Instr,
    Load,
    Node,
    Op,
    Value,
    View,
    needed,
    value_axes,
)
from torchweld.ir.scalar import TABLE
from torchweld.ir.size import Size, hint, product
from torchweld.ir.views import is_dense
from torchweld.targets.products import Rate
from torchweld.targets.target import Target
from torchweld.templates.conv.comp import Call, call_of, lies_by_pixel
from torchweld.templates.gemm.alignment import (
    NARROW,
    WHOLE,
    copied_for_call,
    narrow_stores,
    of_call,
    of_lines,
    of_loads,
    once_rows_are_apart,
)
from torchweld.templates.gemm.comp import is_batched, operands_of
from torchweld.templates.gemm.concatenation import Piece, pieces_of
from torchweld.templates.gemm.hopper.images import image_load
from torchweld.templates.gemm.hopper.schedule import walked_depth, walks_boxes
from torchweld.templates.gemm.schedule import ProductSchedule
from torchweld.templates.gemm.triton.schedule import lies_along_columns
from torchweld.templates.library.calls import with_gelu
from torchweld.templates.pointwise_reduce.price import bytes_of, cost
from torchweld.templates.traffic import node_bytes

# Rows, columns of the library's tiles and shares of the depth, of which it picks the best.
_LIBRARY_TILES = ((128, 256), (256, 128), (128, 192), (128, 128), (128, 64), (64, 128), (64, 64))
# float32 has narrow ones, too (sgemm_32x128, sgemm_128x32): few rows wait for memory there.
_LIBRARY_WIDE = (*_LIBRARY_TILES, (32, 128), (128, 32))
_LIBRARY_SPLITS = (1, 2, 4, 8, 16, 32, 64)
_MICRO = 1e-6
_WHOLE_TILE = 128 * 128
_STEP = 0.75  # power of a tile's size that a step of the depth takes
_TURNED = 32  # columns of a right factor that are turned beside a step
# Multiply-adds for each instruction of an element of a computed right factor. H100, 256 x 4096 x
# 4096 in tiles of 64 x 128: int8 with a scale takes 14 us more than the product alone, int4 with
# zero points 28.
_MADE_FMA = 2.0
_STORED_SINGLY = 1.3  # how often more results of 2 bytes cost than their bytes do
# The same beside, of kernels in Gluon: on an H100, 16 x 511 x 511 took 37 us where 16 are those of
# even lines, 2464 x 1111 38 where 17 are: 2.5 and 3.8 us a MB, of which the last wave hides some.
_SCATTERED = 6.0
_CONVOLVED_COLUMNS = 128  # of fewer, cuDNN's convolutions take as long
_CONVOLVED_CHANNELS = 32  # and so of channels
_GROUPED_CHANNELS = (4, 8, 16, 32)  # of groups that cuDNN convolves at once, as if each were of
_GROUPED_DEPTH = 64
_CUT = 4  # times that images pass memory more, where groups are cut out
# The same where channels lie innermost, and those of a group are no whole lines: cuDNN fills them
# up, and takes the result apart. Of 3 groups of 40 to 60 channels, 3 x 3, 32 images of 75 x 75 in
# bfloat16, an H200 takes 150 us for the products and 430 beside them, where bytes take 26. Of 6
# groups of 20, 3 of 40, 3 of 48, 2 of 56, 3 of 64: 594, 242, 629, 458, 87 us (bench/grouped.py).
_CUT_UNEVEN = 20
_LINE = 64  # channels
_LINE_BYTES = 128
_HELD_TILES = 4  # that an epilogue reads beside a tile of results, and registers hold
_FEW_CHANNELS = 8  # and fewer: cuDNN's kernels do without tensor cores, or pad them


@dataclass(frozen=True, slots=True)
class Work:
    """Sizes of `products` alike, of elements of `width` bytes; the epilogue's bytes beside one
    result, and its multiply-adds for each element of it. `computed`: the left factor is. `pieces`:
    how many columns each of several matrices side by side has. `right_bytes`: of right factors that
    are computed, what they are computed from; `right_fma`: multiply-adds for each element.
    `image_bytes`: of a left factor that is an image, whose windows overlap; `share`: of the speed
    of products that the library's convolutions reach; `gathered`: how many sides an image has whose
    elements are loaded singly; `tile_us`: what a tile of boxes takes for its copies;
    `turned`: a right factor lies along the columns; `alignment`: see alignment.py;
    `narrow_bytes`: of results that are stored in less than 4 bytes at once; `spilled`: tiles that
    the epilogue reads beyond those that registers hold (a window)."""

    batch: int
    rows: int
    columns: int
    depth: int
    products: int = 1
    more_bytes: int = 0
    fma: float = 0.0
    computed: bool = False
    pieces: tuple[int, ...] = ()
    width: int = 2
    right_bytes: int | None = None
    right_fma: float = 0.0
    image_bytes: int | None = None
    share: float = 1.0
    gathered: int = 0
    tile_us: float = 0.0
    turned: bool = False
    alignment: int = WHOLE
    narrow_bytes: int = 0
    spilled: int = 0

    def tiles(self, block_m: int, block_n: int) -> int:
        """None holds columns of two matrices."""
        across = sum(ceil(n / block_n) for n in self.pieces or (self.columns,))
        return self.batch * ceil(self.rows / block_m) * across

    @property
    def results(self) -> int:
        return self.batch * self.rows * self.columns


def library_s(work: Work, device: Target) -> float:
    """Of one call, in the library's best tiles."""
    return _library_s(work, Same((device,)))


@lru_cache(maxsize=1024)
def _library_s(work: Work, same: Same) -> float:
    (device,) = same.objects
    rate = device.products.rate("library", work.width, work.alignment)
    rate = replace(rate, tflops=rate.tflops * work.share)
    least = _CONVOLVED_COLUMNS if work.image_bytes is not None and work.batch == 1 else 0
    return min(
        _seconds(work, rate, *tile, splits, device)
        for tile in (_LIBRARY_TILES if work.width <= 2 else _LIBRARY_WIDE)
        if tile[1] >= least
        for splits in _LIBRARY_SPLITS
    )


def kernel_s(work: Work, schedule: ProductSchedule, device: Target) -> float:
    """Of one kernel that makes all products."""
    tile = schedule.block_m, schedule.block_n
    rates = device.products
    form = "gluon in turn" if schedule.pingpong else schedule.form
    rate = rates.rate(form, work.width, work.alignment)
    if schedule.form != "gluon":
        seconds = _seconds(work, rate, *tile, schedule.splits, device)
        return seconds if schedule.splits == 1 else _shared_s(seconds, work, schedule, device)
    if schedule.early:
        rate = replace(rate, start_us=rate.start_us - rates.early_us)
    seconds = _seconds(work, rate, *tile, schedule.splits, device)
    scattered_s = _SCATTERED * work.narrow_bytes / device.dram_bytes_per_s
    return max(seconds, _tiles_s(work, schedule, device)) + scattered_s


def _shared_s(seconds: float, work: Work, s: ProductSchedule, device: Target) -> float:
    """Of tiles whose depth many programs share: copies of the factors from the last-level cache,
    for each tile, are what bounds small ones; one program alone adds up all shares of a tile."""
    read = work.rows * ceil(work.columns / s.block_n) + work.columns * ceil(work.rows / s.block_m)
    read *= work.batch * work.depth * work.width * work.products
    merged = 4 * s.splits * s.block_m * s.block_n * work.products * device.units
    return max(seconds, read / device.llc_bytes_per_s) + merged / device.llc_bytes_per_s


def _tiles_s(work: Work, schedule: ProductSchedule, device: Target) -> float:
    """Of the ends of all waves but one, which two steps of depth do not hide; of several boxes,
    of the copies for each."""
    rates, area = device.products, schedule.block_m * schedule.block_n * work.products
    waves = ceil(work.tiles(schedule.block_m, schedule.block_n) / device.units)
    if work.tile_us and waves > 1:
        return (rates.rate(schedule.form, work.width).start_us + waves * work.tile_us) * _MICRO
    if work.tile_us or work.depth > 2 * schedule.block_k:
        return 0.0
    each_us = rates.tile_us + rates.tile_fma_us * work.fma
    return (waves - 1) * area / _WHOLE_TILE * each_us * _MICRO


def _seconds(
    work: Work, rate: Rate, block_m: int, block_n: int, splits: int, device: Target
) -> float:
    area = block_m * block_n * work.products
    waves = max(1, ceil(work.tiles(block_m, block_n) * splits / device.units))
    tflops = rate.tflops * 1e12 * min(1.0, area / rate.full_tile) ** rate.small_tiles
    tflops *= work.depth / (work.depth + rate.half_depth) if work.depth else 1.0
    padded_flops = 2.0 * waves * device.units * area * work.depth / splits
    memory_s = _operand_bytes(work) / (rate.memory * device.dram_bytes_per_s)
    epilogue_s = _epilogue_s(work, device) * (1 / waves + rate.exposed * (1 - 1 / waves))
    split_s = 0.0 if splits == 1 else rate.split_us * _MICRO + _partials_s(work, splits, device)
    start_s = rate.start_us * _MICRO + _computed_s(work, block_m, waves, splits, device)
    sustained_s = _flops(work) / device.products.sustained_at(work.width)
    made = waves * block_n * work.depth / splits * device.units  # elements of right factors
    made_s = made * work.right_fma / device.fma_per_s
    turned = rate.turned if work.turned else 1.0
    busy_s = max(
        padded_flops * turned / tflops + made_s, _alone_s(work, rate, block_m, block_n, splits),
        memory_s, _image_s(work, block_n, device),
    )  # fmt: skip
    busy_s += epilogue_s
    return start_s + max(busy_s, sustained_s) + split_s


def _alone_s(work: Work, rate: Rate, block_m: int, block_n: int, splits: int) -> float:
    """Of a program that waits for its own steps, and has a multiprocessor for itself."""
    tile = (2 * block_m * block_n * work.products / rate.full_tile) ** _STEP
    turned = block_n * work.products / _TURNED if work.turned else 1.0
    return work.depth / splits * rate.depth_ns * max(1.0, tile, turned) * 1e-9


def _flops(work: Work) -> float:
    return 2.0 * work.results * work.products * work.depth


def _computed_s(work: Work, block_m: int, waves: int, splits: int, device: Target) -> float:
    """Of left factors that every tile computes for itself."""
    if not work.computed:
        return 0.0
    elements, rates = waves * min(work.rows, block_m) * work.depth / splits, device.products
    each = rates.gathered_fma * work.gathered / 2 if work.gathered else rates.computed_fma
    return elements * each * device.units / device.fma_per_s


def _image_s(work: Work, block_n: int, device: Target) -> float:
    """Of copies from the last-level cache, of each tap of an image for each tile of columns."""
    if work.image_bytes is None:
        return 0.0
    read = work.batch * work.rows * work.depth * work.width * ceil(work.columns / block_n)
    return read / device.llc_bytes_per_s


def _epilogue_s(work: Work, device: Target) -> float:
    moved = work.width * work.results + work.more_bytes + _STORED_SINGLY * work.narrow_bytes
    fma = work.fma + work.spilled * device.products.spilled_fma
    return moved / device.dram_bytes_per_s + fma * work.results / device.fma_per_s


def _partials_s(work: Work, splits: int, device: Target) -> float:
    """Of results in float32, written and read again."""
    return 2 * splits * 4 * work.results * work.products / device.llc_bytes_per_s


def _operand_bytes(work: Work) -> int:
    left = right = 0
    if work.image_bytes is None:
        left = work.rows * work.depth
    if work.right_bytes is None:
        right = work.products * work.columns * work.depth
    elements = work.batch * (left + right + work.rows * work.columns)
    return work.width * elements + (work.image_bytes or 0) + (work.right_bytes or 0)


def _side_by_side(works: Sequence[Work]) -> Work:
    """Matrices that differ in their columns, as one work."""
    pieces = tuple(w.columns for w in works)
    return replace(
        works[0], columns=sum(pieces), more_bytes=sum(w.more_bytes for w in works),
        fma=max(w.fma for w in works), pieces=pieces, spilled=max(w.spilled for w in works),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Prices:
    """Of the nodes of one graph on one device, at typical sizes."""

    graph: Graph
    device: Target
    memo: Memo = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "memo", Memo(self.graph.buffers))

    def comp_s(self, comp: Comp) -> float:
        return self.memo.of("seconds", (comp,), lambda: self._comp_s(comp))

    def _comp_s(self, comp: Comp) -> float:
        return cost(comp, self.graph.buffers, self.graph.hints, self.device).seconds

    def apart_s(self, calls: Sequence[Extern], reader: Comp, alone: bool) -> float:
        """Of the calls and then the Comp that reads their results; `alone`: nothing else does."""
        calls_s = sum(map(self.call_s, calls))
        together = alone and len(calls) == 1 and with_gelu(calls[0], reader, self.graph)
        return self.device.products.gelu * calls_s if together else calls_s + self.comp_s(reader)

    def call_s(self, node: Extern) -> float:
        """Of a library's product, or convolution in 16 bits."""
        convolution = call_of(node)
        if convolution is not None:
            work = self._convolved(node, convolution)
            start_s = self.device.products.rate("library", work.width).start_us * _MICRO
            seconds = library_s(work, self.device) + (start_s if work.more_bytes else 0.0)
            return max(seconds, self._one_by_one_s(node, convolution))
        work, copied = self._called(node)
        if copied is None:
            return library_s(work, self.device)
        moved = sum(2 * work.width * self._number(product(v.shape)) for v in copied)
        copies_s = moved / self.device.dram_bytes_per_s + len(copied) * self.device.launch_s
        return min(library_s(work, self.device), self._whole_s(work) + copies_s)

    def exact_s(self, node: Extern) -> float:
        """Of a library's convolution of float32 images without tensor cores."""
        work = self._convolved(node, call_of(node))
        share = self.device.products.exact_convolution
        return library_s(replace(work, width=4, share=share, image_bytes=None), self.device)

    def lost_s(self, node: Extern) -> float:
        """What a library's product would gain by aligned rows."""
        work, _ = self._called(node)
        return library_s(work, self.device) - self._whole_s(work)

    def apart_gain_s(self, node: Extern) -> float:
        """What it would gain if its rows began at multiples of 16 bytes, whatever their lengths."""
        work, _ = self._called(node)
        matrices = *operands_of(node), self.graph.buffers[node.outputs[0]].view
        reached = once_rows_are_apart(*matrices, work.width, node.target == "aten.mm.default")
        after = replace(work, alignment=max(work.alignment, reached))
        return library_s(work, self.device) - library_s(after, self.device)

    def _whole_s(self, work: Work) -> float:
        return library_s(replace(work, alignment=WHOLE), self.device)

    def _called(self, node: Extern) -> tuple[Work, list[View] | None]:
        """A product, and what would have to be copied for it to be aligned."""
        left, right = operands_of(node)
        result, depth = self.graph.buffers[node.outputs[0]], left.shape[-1]
        *outer, columns = (self._number(n) for n in result.shape)
        batch = outer[0] if is_batched(node) else 1
        rows = prod(outer) // max(1, batch)
        width = self.graph.buffers[left.buffer].dtype.bytes
        wider = (result.dtype.bytes - width) * batch * rows * columns  # sums of 8-bit integers
        matrices = left, right, result.view, width
        work = Work(batch, rows, columns, self._number(depth), more_bytes=wider, width=width,
                    alignment=of_call(*matrices))  # fmt: skip
        return work, copied_for_call(*matrices, wider=node.target == "aten.mm.default")

    def _one_by_one_s(self, node: Extern, call: Call) -> float:
        """Of groups that the library cuts out of the image, and convolves one after the other."""
        if call.groups == 1 or call.channels == 1 or has_grouped_kernels(call):
            return 0.0
        rates, made = self.device.products, self.graph.buffers[node.outputs[0]]
        each_us = rates.groups_us[prod(call.window) > 1]
        elements = self._number(product(call.image.shape)) + self._number(product(made.shape))
        uneven = any(n % _LINE for n in (call.channels, call.results))
        cut = _CUT_UNEVEN if uneven and lies_by_pixel(call.image) else _CUT
        cut_s = cut * elements * made.dtype.bytes / self.device.dram_bytes_per_s
        return call.groups * each_us * _MICRO + cut_s

    def _convolved(self, node: Extern, call: Call) -> Work:
        buffers, made = self.graph.buffers, self.graph.buffers[node.outputs[0]]
        of_rows = len(call.window) == 1
        rows_last = of_rows and call.image.strides[1] == 1
        few = isinstance(call.channels, int) and call.channels <= _FEW_CHANNELS
        few &= call.groups == 1
        sizes = (product((made.shape[0], *made.shape[2:])), call.results,
                 product((_padded(call), *_met(call))))  # fmt: skip
        image = bytes_of(buffers[call.image.buffer], self.graph.hints)
        rows, columns, depth = map(self._number, sizes)
        seen = made.dtype.bytes * self._number(product(call.image.shape))
        read = min(image, seen, 2 * call.groups * rows * depth)
        part = seen < image and not is_dense(call.image)  # which is copied first, as is
        copied = 2 * seen if part or seen > image else 0  # what overlaps itself
        rates = self.device.products
        share = rates.rows if of_rows else rates.convolution
        share = rates.unsuited if rows_last else share
        share = rates.few if seen > image or few else share
        if has_grouped_kernels(call):
            columns, depth = call.groups * columns, _GROUPED_DEPTH * prod(call.window)
            share = rates.grouped * (rates.rows / rates.convolution if of_rows else 1.0)
            return Work(1, rows, columns, depth, more_bytes=copied, image_bytes=read,
                        share=share)  # fmt: skip
        return Work(call.groups, rows, columns, depth, more_bytes=copied, image_bytes=read,
                    share=share)  # fmt: skip

    def _number(self, extent: Size) -> int:
        return hint(extent, self.graph.hints)

    def fused_s(self, accesses: Accesses, form: Contraction, chosen: ProductSchedule) -> float:
        graph = self.graph
        return fused_s(accesses, form, chosen, graph.buffers, graph.hints, self.device)

    def moved(self, node: Node) -> int:
        """Bytes that the node reads and writes."""
        def count() -> int:
            return node_bytes(node, self.graph.buffers, self.graph.hints)

        return self.memo.of("bytes", (node,), count) if isinstance(node, Comp) else count()


def has_grouped_kernels(call: Call) -> bool:
    """Whether the library convolves all groups at once, on tensor cores."""
    alike = call.channels == call.results and call.channels in _GROUPED_CHANNELS
    return call.groups > 1 and alike and prod(call.window) > 1


def _met(call: Call) -> tuple[int, ...]:
    """The elements of a window that one result meets: of a transposed convolution, one of each
    step."""
    steps = call.stride if call.transposed else (1,) * len(call.window)
    return tuple(ceil(window / step) for window, step in zip(call.window, steps))


def _padded(call: Call) -> Size:
    """The channels that a library multiplies."""
    if not isinstance(call.channels, int):
        return call.channels
    if call.groups == 1:
        few = call.channels <= _FEW_CHANNELS
        return call.channels if few else max(call.channels, _CONVOLVED_CHANNELS)
    return max(call.channels, _FEW_CHANNELS)


def fused_s(
    accesses: Accesses,
    form: Contraction,
    chosen: ProductSchedule,
    buffers: Mapping[str, Buffer],
    hints: Mapping[str, int],
    device: Target,
) -> float:
    """Of one kernel that makes products and what follows them."""
    pieces = pieces_of(accesses, form)
    works = [_work(p.accesses, p.contraction, buffers, hints) for p in pieces]
    if works[0].width > 2 and works[0].image_bytes is not None:
        works = [_of_whole_steps(w, chosen) for w in works]
    if chosen.box:
        pairs = zip(works, pieces)
        works = [_of_image(w, p, chosen, buffers, hints, device) for w, p in pairs]
    sums_s = _sums_s(len(column_sums(accesses, form)), device)
    return kernel_s(_side_by_side(works), chosen, device) + sums_s


def _of_whole_steps(work: Work, chosen: ProductSchedule) -> Work:
    """Windows that are short: what is behind their end is multiplied too, and a tile takes as long
    as a step to begin. H100, float32, us, predicted and measured: 3 x 3 x 8 to 64 channels, 10^6
    places 225, 293; 7 x 7 x 4, 400000 in steps of two 171, 200; 3 x 3 x 64, 200000 200, 198."""
    steps = -(-work.depth // chosen.block_k) + 1
    return replace(work, depth=steps * chosen.block_k)


def _of_image(
    work: Work, piece: Piece, chosen: ProductSchedule, buffers, hints: Mapping[str, int],
    device: Target,
) -> Work:
    """`work` where tiles of rows are boxes of places: copies read the image, and write no more than
    there is of the result."""
    accesses, form = piece.accesses, piece.contraction
    rows = chosen.block_m * chosen.row_tiles([accesses.comp.extent(a) for a in form.rows])
    images = dict.fromkeys(accesses.loads[image_load(accesses, p)].buffer for p in form.products)
    most = len(images) * work.width * work.batch * work.rows * work.depth
    read = min(_bytes(images, buffers, hints), most)
    steps = walked_depth(accesses, form, chosen) // chosen.block_k
    each_us = max(_box_us(accesses, form, image_load(accesses, p), steps, device)
                  for p in form.products)  # fmt: skip
    return replace(work, rows=rows, computed=False, gathered=0, image_bytes=read,
                   tile_us=each_us * chosen.block_m / 128)  # fmt: skip


def _box_us(
    accesses: Accesses, form: Contraction, load: Value, steps: int, device: Target
) -> float:
    """Of a tile of 128 places, so many steps of the depth."""
    rates = device.products
    offset, width = accesses.loads[load].offset, accesses.comp.body[load].dtype.bytes
    apart = offset.coefficient(form.rows[-1])
    apart = apart * width if isinstance(apart, int) else 0
    _, tile_us, step_us = max(r for r in rates.boxes if r[0] <= max(apart, 0))
    starts = of_lines(offset, form.depth[-1], width, _LINE_BYTES)
    slow_us = (us for most, us in rates.unaligned if starts <= most and apart > rates.short_line)
    return tile_us + steps * next(slow_us, step_us)


def _sums_s(count: int, device: Target) -> float:
    """Of so many sums of columns beside a product."""
    return device.products.sum_us * _MICRO * count


def _work(accesses: Accesses, form: Contraction, buffers, hints: Mapping[str, int]) -> Work:
    comp = accesses.comp
    spans = list(zip(comp.body, value_axes(comp.body)))
    after = [i for i, axes in spans if not axes.intersection(form.depth)]
    loads = [i for i in after if isinstance(i, Load)]
    batch, rows, columns, depth = (
        hint(product(comp.extent(a) for a in axes), hints)
        for axes in (form.batch, form.rows, form.columns, form.depth)
    )
    moved = _bytes((*(i.buffer for i in loads), *comp.writes), buffers, hints)
    width = max(comp.body[operand(comp.body, p.left)].dtype.bytes for p in form.products)
    more = max(0, moved - width * batch * rows * columns)
    fma = sum(TABLE[i.name].cost for i in after if isinstance(i, Op))
    beside = [axes for i, axes in spans if isinstance(i, Load) and not axes & {*form.depth}]
    tiles = sum(not axes.isdisjoint(form.rows) and not axes.isdisjoint(form.columns)
                for axes in beside)  # fmt: skip
    wide = width > 2  # loaded in whole vectors, or not at all
    windows = walks_boxes(accesses, form)
    in_windows = windows and not wide
    computed = in_windows or any(p.left_load is None for p in form.products)
    narrow = (comp.stores[p].buffer for p in narrow_stores(accesses, form, NARROW))
    made = (p.right for p in form.products if p.right_load is None)
    behind = needed(comp.body, made)
    lefts = (comp.body[p.left_load].buffer for p in form.products if p.left_load is not None)
    packed = [comp.body[v].buffer for v in behind if isinstance(comp.body[v], Load)]
    return Work(
        batch, rows, columns, depth, len(form.products), more, fma, computed, width=width,
        right_bytes=_bytes(packed, buffers, hints) if packed else None,
        right_fma=_MADE_FMA * sum(_is_made(*spans[v], form) for v in behind),
        gathered=max(2, len(form.rows) - 1) if in_windows else 0,
        turned=lies_along_columns(accesses, form),
        alignment=WHOLE if in_windows else of_loads(accesses, form),
        narrow_bytes=_bytes(narrow, buffers, hints), spilled=max(0, tiles - _HELD_TILES),
        image_bytes=_bytes(lefts, buffers, hints) if windows and wide else None,
    )  # fmt: skip


def _is_made(instr: Instr, axes: frozenset[str], form: Contraction) -> bool:
    """Whether an instruction of a right factor is done for each of its elements. Choices among
    phases of a packed number are made by the compiler."""
    done = isinstance(instr, Cast) or (isinstance(instr, Op) and instr.name != "where")
    return done and not axes.isdisjoint(form.depth) and not axes.isdisjoint(form.columns)


def _bytes(names: Iterable[str], buffers, hints: Mapping[str, int]) -> int:
    """Of buffers, each once."""
    return sum(bytes_of(buffers[n], hints) for n in dict.fromkeys(names))
