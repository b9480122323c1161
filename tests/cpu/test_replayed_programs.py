"""Random programs in inference, replayed by a stand-in for CUDA graphs, with small results beside
large ones: each call gives what eager does."""

from __future__ import annotations

from functools import partial

from hypothesis import HealthCheck, given, settings

from own_cache import with_runtime
from recorded import record_on_cpu
from torchweld.exact.campaign.checks import called_again
from torchweld.exact.campaign.gates import few_bytes_are_large
from torchweld.exact.fuzz import differences, programs
from torchweld.runtime import placement, shape

QUIET = (HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much)


def test_random_programs(tmp_path, monkeypatch):
    recordings, tails = record_on_cpu(monkeypatch), []

    def tail_start(shaper) -> int:
        """As on a GPU."""
        graph = shaper.loaded.graph
        end = len(graph.nodes)
        start = placement.tail_start(graph, shaper.sizes) if shaper.loaded.has_tail else end
        tails.append(start < end)
        return start

    monkeypatch.setattr(shape._Shaper, "_tail_start", tail_start)
    fuse = partial(called_again, cache_dir=with_runtime(tmp_path / "cache"))

    @settings(max_examples=60, derandomize=True, deadline=None, suppress_health_check=QUIET)
    @given(programs())
    def replayed_equals_eager(program):
        with few_bytes_are_large():
            found = differences(program, fuse, train=False)
        assert not found, f"{found}\n{program.source}"

    replayed_equals_eager()
    assert len(recordings) > 20 and sum(tails) > 10
