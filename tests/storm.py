"""Many processes on one empty cache, half of them killed at random: those that live must be right,
and so must one that starts afterwards, with what is left.

    python tests/storm.py [processes] [seed]
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

import torchweld
from forked import Forked


def work(tell: Callable) -> None:
    """Tells that it begins, then whether its results are right."""
    torch.manual_seed(0)
    x, w = torch.randn(33, 70), torch.randn(70)
    tell("begins")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        found = torchweld.fuse(layer)(x, w)
    told = [str(w.message) for w in told if w.category is torchweld.TorchweldWarning]
    exact = layer(x.double(), w.double())
    errors = [float((a.double() - b).norm() / b.norm()) for a, b in zip(found, exact)]
    tell("right" if max(errors) < 1e-6 and not told else f"wrong: {errors} {told}")


def layer(x, w):
    y = x.softmax(1) * w
    return torch.nn.functional.layer_norm(y + x, (70,)), y.sum(0)


@dataclass(frozen=True)
class Outcome:
    """`killed`: before they were done. `right`, `wrong`: what the others printed. `after`: what a
    process printed that came later. `left`: unfinished files in the cache."""

    killed: int
    right: int
    wrong: list[str]
    after: str


def storm(processes: int, seed: int, root: Path) -> Outcome:
    """`root`: where the cache goes. The kills come while kernels are compiled and written."""
    rng, cache = random.Random(seed), root / "cache"
    workers = [_start(cache) for _ in range(processes)]
    assert [worker.told() for worker in workers] == ["begins"] * processes
    for worker in rng.sample(workers, processes // 2):
        time.sleep(rng.random() * 2 / processes)
        worker.process.kill()
    said = ["".join(worker.rest()) for worker in workers]
    after = "".join(_start(cache).rest()).removeprefix("begins")
    wrong = [s for s in said if s not in ("right", "")]
    return Outcome(said.count(""), said.count("right"), wrong, after)


def _start(cache: Path) -> Forked:
    return Forked(work, TORCHWELD_CACHE_DIR=str(cache))


def main() -> int:
    processes, seed = (int(a) for a in (*sys.argv[1:], *("64", "0")[len(sys.argv) - 1 :]))
    with tempfile.TemporaryDirectory() as root:
        found = storm(processes, seed, Path(root))
    print(f"{processes} processes: {found}")
    return 0 if not found.wrong and found.after == "right" else 1


if __name__ == "__main__":
    sys.exit(main())
