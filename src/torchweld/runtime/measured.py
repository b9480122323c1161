"""What was measured of products, on disk, by what a region computes: another model, or another
process, with an equal region measures nothing."""

from __future__ import annotations

from dataclasses import dataclass

from torchweld.core.options import Options
from torchweld.runtime.cache import Artifacts, digest, open_cache
from torchweld.runtime.codec import decode, encode
from torchweld.runtime.plan_cache import code_identity, device_identity
from torchweld.templates.gemm.schedule import ProductSchedule

_SUFFIX = ".measured.json"
_MARGIN = 0.02  # of the time apart, that a fusion must save


@dataclass(frozen=True, slots=True)
class Measured:
    """Of one region: the fastest tiling of its kernel, microseconds of that kernel and of what it
    replaces (None: not found), and how many tilings did not run."""

    best: ProductSchedule
    together_us: float
    apart_us: float | None
    failed: int = 0

    @property
    def choice(self) -> ProductSchedule | str:
        """How to make the kernel, or why it is not worth making."""
        if self.apart_us is None or self.together_us <= (1 - _MARGIN) * self.apart_us:
            return self.best
        return f"measured {self.apart_us:.1f} us apart, {self.together_us:.1f} us together"


class MeasuredCache:
    """Files named by `key`: of another device, version of torch or Triton, or of this package,
    nothing is found."""

    def __init__(self, artifacts: Artifacts) -> None:
        self._artifacts = artifacts

    @classmethod
    def open(cls, options: Options) -> MeasuredCache:
        return cls(open_cache(options))

    def key(self, region: str, device: str) -> str:
        """`region`: the signature of its Comp (ir/canonical.py), with all sizes. `device`: as torch
        prints it."""
        return digest("measured", region, *device_identity(device), *code_identity())

    def get(self, key: str) -> Measured | None:
        """None too for what cannot be read."""
        content = self._artifacts.get(key, _SUFFIX)
        if content is None:
            return None
        try:
            found = decode(content.decode(), (Measured, ProductSchedule))
        except (ValueError, KeyError, TypeError):
            return None
        return found if isinstance(found, Measured) else None

    def put(self, key: str, found: Measured) -> None:
        text = encode(found, (Measured, ProductSchedule))
        self._artifacts.put(key, _SUFFIX, text.encode())
