"""Work that is done once for the same objects."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class Same:
    """Arguments that are known by being the same objects: to compare or to hash a Comp takes as
    long as what is worked out of it. They live as long as their answer is kept, so that no other
    object has their address."""

    __slots__ = ("_hash", "objects")

    def __init__(self, objects: tuple) -> None:
        self.objects = objects
        self._hash = hash(tuple(map(id, objects)))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Same) or len(self.objects) != len(other.objects):
            return False
        return all(a is b for a, b in zip(self.objects, other.objects))


def once(most: int) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Keeps what a function gave for each of the last `most` groups of objects. Its arguments must
    be frozen and given by position; nobody may change what it gives."""

    def keeping(work: Callable[P, T]) -> Callable[P, T]:
        known = lru_cache(maxsize=most)(lambda same: work(*same.objects))
        return wraps(work)(lambda *objects: known(Same(objects)))

    return keeping
