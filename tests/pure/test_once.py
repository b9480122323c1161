"""core/once.py: work that is done once for the same objects."""

from __future__ import annotations

from torchweld.core.once import once


def test_the_same_objects_are_asked_of_once():
    """Equal ones are others: nothing is compared or hashed."""
    asked = []

    @once(2)
    def length(words: list[str], more: list[str]) -> int:
        """Documented."""
        asked.append(words)
        return len(words) + len(more)

    words, more = ["a", "b"], ["c"]
    assert [length(words, more), length(words, more), length(["a", "b"], more)] == [3, 3, 3]
    assert len(asked) == 2 and length.__doc__ == "Documented."
    assert length(more, words) == 3 and len(asked) == 3  # in another order


def test_only_the_last_answers_are_kept():
    asked = []

    @once(2)
    def seen(thing: list) -> int:
        asked.append(thing)
        return id(thing)

    things = [[0], [1], [2]]
    for thing in (*things, things[2], things[0]):
        assert seen(thing) == id(thing)
    assert asked == [*things, things[0]]
