"""What several threads do at the same time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor


def in_threads(work: Callable[[], object], count: int = 2) -> None:
    """Runs `work` in `count` threads, which begin together; raises what one of them raised."""
    start = threading.Barrier(count)

    def begun() -> None:
        start.wait()
        work()

    with ThreadPoolExecutor(count) as pool:
        for done in [pool.submit(begun) for _ in range(count)]:
            done.result()
