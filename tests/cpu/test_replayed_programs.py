"""Random programs in inference, replayed by a stand-in for CUDA graphs, with tails behind small
results: each call gives what eager does."""

from __future__ import annotations

import torch
from hypothesis import HealthCheck, given, settings

import torchweld
from own_cache import with_runtime
from recorded import record_on_cpu
from torchweld.exact.fuzz import differences, programs
from torchweld.runtime import placement, recording, shape

LARGE_BYTES = 100  # of some results of most programs, not of all
CALLS = 4  # of which the last two at least are replays
QUIET = (HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much)


def test_random_programs(tmp_path, monkeypatch):
    recordings, tails = record_on_cpu(monkeypatch), []
    for module in (placement, recording):
        monkeypatch.setattr(module, "LARGE_OUTPUT_BYTES", LARGE_BYTES)

    def tail_start(shaper) -> int:
        graph = shaper.loaded.graph
        start = placement.tail_start(graph, shaper.sizes) if shaper.loaded.has_tail else None
        tails.append(start not in (None, len(graph.nodes)))
        return len(graph.nodes) if start is None else start

    monkeypatch.setattr(shape._Shaper, "_tail_start", tail_start)
    cache = with_runtime(tmp_path / "cache")

    def fuse(function):
        torch.compiler.reset()
        fused = torchweld.fuse(function, cache_dir=cache)

        def last_of_several(*inputs):
            for _ in range(CALLS - 1):
                fused(*(x.clone() if isinstance(x, torch.Tensor) else x for x in inputs))
            return fused(*inputs)

        return last_of_several

    @settings(max_examples=60, derandomize=True, deadline=None, suppress_health_check=QUIET)
    @given(programs())
    def replayed_equals_eager(program):
        found = differences(program, fuse, train=False)
        assert not found, f"{found}\n{program.source}"

    replayed_equals_eager()
    assert len(recordings) > 20 and sum(tails) > 10
