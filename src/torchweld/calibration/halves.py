"""How fast this machine's library makes products of 16-bit floats: with instructions for them
several times as fast as of float32, without them up to 20 times slower.

Measured at the first compilation that has such a product, at one size, in some tens of
milliseconds; kept as rates of float32 are (gemm.py).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from torchweld.calibration.gemm import (
    COLUMNS,
    DEPTH,
    disturbance,
    drawn,
    measured_once,
    timed,
)
from torchweld.calibration.waiting import Moment, waiting_share
from torchweld.core.logs import logger
from torchweld.core.options import Options
from torchweld.targets.rates import ROWS, Rates

_ROWS = 64


def measured_halves(dtype: torch.dtype, options: Options) -> Rates | None:
    """Multiply-adds a second of ATen's products of `dtype`, the same for each of ROWS; None while
    the machine is busy."""
    name = str(dtype).removeprefix("torch.")
    return measured_once(f"{name} rates", lambda: _measured(name, dtype), options)


def _measured(name: str, dtype: torch.dtype) -> Rates | None:
    weight, x = (drawn(n, DEPTH).to(dtype) for n in (COLUMNS, _ROWS))
    before = Moment.now()
    times = timed({"aten": lambda x: F.linear(x, weight)}, x)
    if why := disturbance(times, waiting_share(before)):
        logger("calibration").info("busy: %s", why)
        return None
    rate = _ROWS * COLUMNS * DEPTH / min(times["aten"])
    logger("calibration").info("%s: %.3g multiply-adds a second", name, rate)
    return {f"{name} aten": (rate,) * len(ROWS)}
