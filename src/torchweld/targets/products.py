"""How fast a GPU makes products of matrices: by the library, and by each form of kernel
(templates/gemm/schedule.py). templates/gemm/price.py has the formula."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

# 8-bit integers, in times of 16-bit floats, whoever makes them. An estimate: the H100's datasheet
# has 1979 tera-operations a second where it has 989 of bfloat16. Nothing was measured.
_OF_BYTES = 2.0
_HALF_TILE, _MMA_TILE, _WGMMA_TILE = 128 * 64, 128 * 128, 128 * 256  # elements


@dataclass(frozen=True, slots=True)
class Rate:
    """`start_us`: of a kernel that has nothing to do, its launch included. `tflops` in tiles of
    `full_tile` elements and more (all products together); smaller ones lose by the power
    `small_tiles` of their share, short depths by `half_depth` (at which the rate is half).
    `depth_ns`: what a program takes for an element of the depth, in tiles of half of that and less.
    `turned`: how many times as long it multiplies where a right factor lies along the columns.
    `memory`: share of copy speed that operands stream at. `exposed`: share of the epilogue of all
    waves but the last that the main loop does not hide. `split_us`: to add up shares of one tile's
    depth."""

    start_us: float
    tflops: float
    small_tiles: float
    half_depth: float
    memory: float
    exposed: float
    split_us: float
    full_tile: int = _WGMMA_TILE
    depth_ns: float = 0.0
    turned: float = 1.0


@dataclass(frozen=True, slots=True)
class ProductRates:
    """`forms`: of 16-bit types, by the form of a kernel, and "library", and where rows are aligned
    to 2, 4 or 8 bytes alone, with that number behind; `wide`: of float32.
    `sustained`: flops per second that the power limit leaves a long kernel, whatever makes it.
    `gelu`: of the library's product with a gelu, in times of the product. `computed_fma`:
    multiply-adds that each element of a left factor costs if it is computed on the way (a norm), in
    every tile. `early_us`: what a kernel in Gluon gains by beginning while the one before it ends.
    `sum_us`: to add up columns: in tiles, and then tiles. `tile_us`, `tile_fma_us`: what a tile of
    128 x 128 in Gluon takes however short its depth, and for each multiply-add of its epilogue.
    `convolution`: the share of its products' speed that the library's convolutions reach,
    `exact_convolution` in float32 without tensor cores;
    `rows`: those of rows, which take 2 to 3 times as long as images of one; `unsuited`: those of
    rows with their channels innermost; `few`: those of images of up to eight
    channels, and of images that overlap themselves; `gathered_fma`: as `computed_fma`, of elements
    of windows on an image of two sides that are loaded one by one; `spilled_fma`: what an element
    costs of a tile that an epilogue reads and registers do not hold; `grouped`: as `convolution`,
    of groups that the library convolves at once; `groups_us`: of each that it does not, in windows
    of one pixel and of more. `bias_fma`: multiply-adds of a float32 product that the library
    makes slower with a bias than without, by more than a kernel takes to add it. `boxes`: by
    the bytes from one place of an image to the next, at least, what a tile of 128 rows that are
    places takes in Gluon, and each of its steps of the depth, in us; `unaligned`: by the bytes, at
    most, at whose multiples the channels of places begin, what a step of longer lines than
    `short_line` bytes takes."""

    forms: Mapping[str, Rate]
    wide: Mapping[str, Rate]
    sustained: float
    gelu: float
    computed_fma: float
    early_us: float
    sum_us: float
    tile_us: float = 0.0
    tile_fma_us: float = 0.0
    convolution: float = 0.85
    exact_convolution: float = 0.7
    rows: float = 0.34
    unsuited: float = 0.1
    few: float = 0.062
    gathered_fma: float = 115.0
    spilled_fma: float = 600.0
    grouped: float = 0.31
    groups_us: tuple[float, float] = (2.0, 8.0)
    bias_fma: float = 0.0
    boxes: tuple[tuple[int, float, float], ...] = ((0, 0.0, 0.0),)
    unaligned: tuple[tuple[int, float], ...] = ()
    short_line: int = 64

    def rate(self, form: str, width: int, alignment: int = 16) -> Rate:
        """Of elements of `width` bytes, in rows at multiples of `alignment` bytes."""
        forms = self.forms if width <= 2 else self.wide
        found = forms.get(f"{form} {alignment}", forms[form])
        return replace(found, tflops=found.tflops * _OF_BYTES) if width == 1 else found

    def sustained_at(self, width: int) -> float:
        """`sustained`, of elements of `width` bytes."""
        return self.sustained * _OF_BYTES if width == 1 else self.sustained

    def scaled(self, share: float) -> ProductRates:
        """Of a device whose arithmetic is that much faster, and otherwise alike."""
        def faster(rates: Mapping[str, Rate]) -> dict[str, Rate]:
            return {n: replace(r, tflops=r.tflops * share) for n, r in rates.items()}

        forms, wide = faster(self.forms), faster(self.wide)
        return replace(self, forms=forms, wide=wide, sustained=self.sustained * share)


def _unaligned(
    start_us: tuple[float, float], library: tuple[float, float], triton: tuple[float, float],
    tile: int,
) -> dict[str, Rate]:  # fmt: skip
    """What the library and Triton make of rows aligned to less than 16 bytes. `library`, `triton`:
    TFLOP/s for 2 bytes, and for 4 or 8. Streams are loads like Triton's other tiles, no faster."""
    kinds = (0.15, 100, 0.36), (0.3, 0, 0.6)  # small tiles, half depth, memory
    cutlass = (Rate(start_us[0], flops, *kind, 0.46, 2.8, _MMA_TILE)
               for flops, kind in zip(library, kinds))  # fmt: skip
    masked = (Rate(start_us[1], flops, 0.45, 0, 0.90, 0.8, 0.5, tile, step_ns)
              for flops, step_ns in zip(triton, (30.0, 6.5)))  # fmt: skip
    masked = tuple(masked)
    found = {"library": tuple(cutlass), "triton": masked, "stream": masked}
    return {f"{form} {b}": of[b > 2] for form, of in found.items() for b in (2, 4, 8)}


# H100, bf16: bench/gpu_products.py in a CUDA graph, weights from memory: fitted to 23 shapes of the
# library (each within 14 %), to the better schedules of 26 shapes of Triton and of streams (rms 13
# and 8 %), and to the two best tiles of 31 shapes in Gluon, in turn and not (5.5 and 6 %).
# cublasLt's gelu: [4096, 768] x [768, 3072]. A computed left factor: [16, 2048] x [2048, 2 x 8192]
# takes 2.2 us more in tiles of 64 columns, 5.0 of 32. float32 (codegen/triton/wide.py), us, library
# and Triton: 4096 x 4096 x 4096 2727, 1622; 2048 x 4096 x 1024 345, 206; 16384 x 256 x 256 52, 35.
# A program alone on a multiprocessor takes, in ns for an element of the depth, in tiles of 64 x 32,
# 64 x 64, 128 x 64: 21, 22, 36; with a right factor along the columns 18, 42, 54.
# Tiles in Gluon: 802816 x 64 x 128 with hardswish 256 us on an H200, with mish 603. Boxes, H100,
# ours and the library's, us: 3 x 3, 64 channels, 201000 places 48.6, 43.8; 128, 50000 28.7, 28.2;
# 256, 12500 31.9, 27.9; 512, 3100 29.7, 28.1; 16 -> 64, 373000 111 (in boxes of 32 x 2 x 2), 58;
# windows of few channels: 3 x 3, 8 -> 64, 590000 126, 167 with channels last, 288 without;
# 3 x 3 x 3, 3 -> 16, 948000 480, 390. One by one: 2.7 to 4.5 ps each (passes/few_channels.py).
# Groups, H100, 16 images that the last-level cache holds, where ours take 0.7 of their price and so
# does the library at 0.43 of its speed for one group (bench/grouped.py), us: 3 x 3, 32 groups of 4,
# 8, 16, 32 in images of 56, 28, 14, 7 26.2, 17.5, 9.5, 6.6; 5 of 24, 28 x 28 76.7; 9 of 48, 14 x 14
# 73.1; 4 of 64, 28 x 28 40.6; 1 x 1: 18 of 32, 14 x 14 44.6; 36 of 32, 7 x 7 58; 24 of 16, 28 x 28
# 103; 4 of 64, 56 x 56 93.6.
# Channels that begin at multiples of 16 or 32 bytes, H200, 32 images of 75 x 75, 3 x 3, us: 3
# groups of 40 274, of 48 170, of 64 95.5 (128 bytes); 2 of 56 161; one of 112 and 120 116, 162.
# Tiles beside a tile: 46640 x 77 with a depth of 40, and beside it a window of 3 x 3 in a
# concatenation, which is ten: 460 us, without them 15 by this price. ptxas keeps 3.5 KB of each
# thread in memory.
# A bias in float32, of 252 shapes of 24 to 4096 rows: below 2e6 multiply-adds cublasLt takes 12.5
# to 18.9 us in four kernels, without a bias 3.2 to 11.1; above 3.7e6 1.06 times as long with one.
# Rows that are not aligned: 14 shapes of the library, each within 30 %; of Triton a small
# tile takes 16 to 57 ns an element of the depth in odd rows, 5.5 to 7 in rows of 4 and 8 bytes.
# A stream in odd rows, H200: 37 x 37 with a depth of 400,009 in 191 us, the library in 66.
HOPPER = ProductRates(
    forms={
        "library": Rate(3.0, 800, 0.0, 0, 0.90, 0.46, 2.8),
        "gluon": Rate(5.0, 960, 0.0, 0, 0.90, 0.8, 0.5),
        "gluon in turn": Rate(5.0, 1120, 0.24, 0, 0.90, 0.6, 0.5),
        "triton": Rate(2.6, 900, 0.45, 0, 0.90, 0.8, 0.5),
        "stream": Rate(2.8, 850, 0.37, 244, 0.96, 1.0, 0.6),
        "gluon stream": Rate(2.3, 850, 0.37, 0, 1.07, 1.0, 0.4),  # behind another stream
        **_unaligned((3.0, 2.6), (115, 150), (450, 600), _WGMMA_TILE),
    },
    wide={
        "library": Rate(3.0, 51, 0.05, 0, 0.90, 0.46, 2.8, _MMA_TILE),
        "triton": Rate(2.6, 86, 0.10, 0, 0.90, 0.8, 0.5, _HALF_TILE, 22.0, 1.45),
    },
    sustained=7.0e14, gelu=38.3 / 32.9, computed_fma=16.0, early_us=1.0, sum_us=3.5, tile_us=4.0,
    tile_fma_us=0.23, bias_fma=2.4e6,
    boxes=((0, 2.0, 0.62), (32, 1.3, 0.2), (128, 1.3, 0.31)), unaligned=((16, 0.65), (32, 0.4)),
)  # fmt: skip

# A100: a prior, not measured. The library's large products reach 250 to 270 of the 312 TFLOP/s,
# less in tiles below 128 x 128, and Triton's 0.85 to 0.95 of the library's. Two things differ from
# Hopper: mma.sync reads its operands from registers and is at its full rate in tiles of 128 x 128,
# where wgmma wants 128 x 256; and two blocks of a tile's 64 KB of stages fit on a multiprocessor,
# of which one multiplies while the other is at its epilogue: less than half of that is exposed.
# Streams are bound by memory: the H100's, at this device's arithmetic. Launches take 0.5 us longer.
# float32: 0.85 of 19.5 TFLOP/s, and a third of TF32's 156 at the share that Hopper's have.
SM_80 = ProductRates(
    forms={
        "library": Rate(3.5, 285, 0.15, 0, 0.90, 0.46, 2.8, _MMA_TILE),
        "triton": Rate(3.1, 257, 0.45, 0, 0.90, 0.4, 0.5, _MMA_TILE),
        "stream": Rate(3.3, 325, 0.37, 244, 0.96, 1.0, 0.6),
        **_unaligned((3.5, 3.1), (95, 125), (150, 200), _MMA_TILE),
    },
    wide={
        "library": Rate(3.5, 16.5, 0.05, 0, 0.90, 0.46, 2.8, _MMA_TILE),
        "triton": Rate(3.1, 30, 0.10, 0, 0.90, 0.4, 0.5, _HALF_TILE, 28.0),
    },
    sustained=2.7e14, gelu=38.3 / 32.9, computed_fma=16.0, early_us=0.0, sum_us=3.5,
)  # fmt: skip
