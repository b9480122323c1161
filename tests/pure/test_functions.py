"""Functions that are like others (capture/functions.py)."""

from __future__ import annotations

import pytest

from torchweld.capture.functions import locals_of

free = "a global"


def _closing():
    cell = [7]

    def function(a, b=2):
        return a, b, cell, lambda: b

    return function, cell


def _plain(a, b=2):
    c = a
    return c


def _all_kinds(a, /, b, c=3, *rest, d, e=5, **others):
    return a, free


def test_arguments_by_name():
    assert locals_of(_plain)(1) == {"a": 1, "b": 2}
    found = locals_of(_all_kinds)(1, 2, 4, 8, 16, d=32, f=64)
    assert found == {"a": 1, "b": 2, "c": 4, "rest": (8, 16), "d": 32, "e": 5, "others": {"f": 64}}
    assert locals_of(lambda *, a: a)(a=1) == {"a": 1}


def test_cells_count_as_they_are_now():
    function, cell = _closing()
    found = locals_of(function)(1)
    assert found == {"a": 1, "b": 2, "cell": [7]} and found["cell"] is cell


def test_a_wrong_call_is_told_by_the_function_s_name():
    with pytest.raises(TypeError, match=r"^_plain\(\) missing 1 required positional argument: 'a'"):
        locals_of(_plain)()


def test_what_has_no_names_or_no_values_yet_is_refused():
    def early():
        return late

    assert locals_of(early) is None
    late = 1
    assert locals_of(early)() == {"late": late}
