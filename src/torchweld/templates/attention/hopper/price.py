"""Predicted seconds of a score nest on Hopper.

    start + max(bytes / copy speed, pairs * (longer + part of the shorter) / share of busy units)

of products and the work on scores: they are done beside each other. An H100 took 820 us for 64
heads of 128 with 4096 keys, 943 are predicted. Causal with 2048 keys, forward, queries, keys and
values, in us, predicted in brackets: heads of 64 120 (106), 132 (111), 188 (149); of 128 152 (138),
177 (185), 288 (279). One product for each score has come since.
"""

from __future__ import annotations

from torchweld.templates.attention.gpu import price as gpu
from torchweld.templates.attention.gpu.schedule import Work
from torchweld.templates.attention.hopper.schedule import HopperSchedule, tiles

_HIDDEN = 0.8  # of the shorter
_SHARE = {True: 1.0, False: 0.85}  # of the tensor cores' rate, where products overlap with scores


def seconds(work: Work, s: HopperSchedule) -> float:
    products_s, scores_s = gpu.products_s(work, _SHARE[s.overlapped]), gpu.scores_s(work)
    hidden = _HIDDEN * min(products_s, scores_s)
    pair_s = products_s + scores_s - hidden
    busy_s = work.points(work.nest.batch) * gpu.pairs(work, s) * pair_s
    return gpu.start_s(work) + max(
        busy_s / gpu.busy(work, tiles(work, s)), gpu.moved(work) / work.target.dram_bytes_per_s
    )
