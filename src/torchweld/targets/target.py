"""What a device can do, as far as planning and scheduling need to know."""

from __future__ import annotations

from dataclasses import dataclass, field

from torchweld.targets.products import ProductRates
from torchweld.targets.rates import Rates


@dataclass(frozen=True, slots=True)
class Target:
    """Rates are sustained ones, in units per second; `fma_per_s` counts float32 multiply-adds
    outside tensor cores.

    units            streaming multiprocessors, or threads
    llc_*            last-level cache: L2 of a GPU, L3 of a CPU
    row_bytes        what one unit keeps on chip of a row while it is worked on
    line_bytes       smallest piece of memory that is moved: a sector, or a cache line
    launch_s         added to every kernel
    grain            elements that one unit needs before a pointwise kernel keeps it busy
    max_columns      of a row that is held in registers beside sums over the rows; 0: no limit
    max_live, max_buffers   values and buffers of one kernel beyond which it spills
    features         of the instruction set: "avx2", "avx512", "amx"; "wgmma", "tma", "pdl"
    templates        names of the templates that may make kernels, the most special first
    passes           names of the passes from lowering to kernels, in order
    rates            of products of matrices on a CPU (rates.py); empty on a GPU
    products         the same on a GPU (products.py); None on a CPU
    memory_bytes     of the device
    """

    name: str
    kind: str
    units: int
    dram_bytes_per_s: float
    llc_bytes_per_s: float
    llc_bytes: int
    fma_per_s: float
    tensor_fma_per_s: float
    launch_s: float
    row_bytes: int
    line_bytes: int
    grain: int
    shared_bytes: int = 0
    capability: tuple[int, int] = (0, 0)
    max_columns: int = 16384
    max_live: int = 48
    max_buffers: int = 48
    features: tuple[str, ...] = ()
    templates: tuple[str, ...] = ()
    passes: tuple[str, ...] = ()
    rates: Rates = field(default_factory=dict, hash=False)
    products: ProductRates | None = field(default=None, hash=False)
    memory_bytes: int = 16 << 30

    @property
    def begins_early(self) -> bool:
        """Whether a kernel can start while the one before still runs: from Hopper on."""
        return self.capability >= (9, 0)

    @property
    def lanes(self) -> int:
        """Numbers of float32 in a vector of a CPU."""
        return lanes_of(self.features)


def lanes_of(features: tuple[str, ...]) -> int:
    """Numbers of float32 in a vector of a CPU with such instructions."""
    return 16 if "avx512" in features else 8 if "avx2" in features else 4
