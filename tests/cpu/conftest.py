"""What tests of the CPU share."""

from __future__ import annotations

from dataclasses import replace

import pytest


@pytest.fixture(scope="module", autouse=True)
def one_measurement_of_the_device():
    """No test is about how fast this machine is, and workers keep it busy: what is measured first
    serves the others, seven seconds of a processor each. Users' is measured up to twice more."""
    from torchweld.observe.predict import calibrate  # after the environment is set

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(calibrate, "_MOST_TIMES", 1)
        yield


@pytest.fixture
def scores_in_kernels(monkeypatch):
    """On any machine: attention is planned as where memory is slow, and the library no faster in 16
    bits than in 32."""
    from torchweld.plan.scores import offer, takes

    monkeypatch.setattr(takes, "_apart_s", lambda *args: float("inf"))
    monkeypatch.setattr(offer.Desk, "_rate_in_16_bits", lambda self, kind: None)
    takes.taken_by.cache_clear()
    yield
    takes.taken_by.cache_clear()


@pytest.fixture
def convolutions_of_ours(monkeypatch):
    """On a machine without AVX-512, too: which kernels are planned, not how fast they are."""
    import torch

    from torchweld import pipeline
    from torchweld.targets.find import target_of

    torch._dynamo.reset()
    target = replace(target_of("cpu"), features=("avx2", "avx512"))
    monkeypatch.setattr(pipeline, "target_of", lambda device: target)
