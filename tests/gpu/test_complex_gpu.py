"""Models of complex numbers on a GPU: as exact as eager, in kernels."""

from __future__ import annotations

import pytest

from complex_models import MODELS, check

pytestmark = pytest.mark.filterwarnings("error::torchweld.core.events.TorchweldWarning")


@pytest.mark.parametrize("train", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("name", MODELS)
def test_as_exact_as_eager(name, train):
    check(name, train, "cuda")
