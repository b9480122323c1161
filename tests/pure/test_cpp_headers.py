"""What a C++ kernel is given of the headers."""

from __future__ import annotations

from pathlib import Path

import torchweld
from torchweld.codegen.cpp.headers import _indexed, common_header, kernel_alone, with_headers

GIVEN = {"TW_ROWS", "TW_FEW", "TW_CACHE"}  # defined in front of a header, by its template
# What a macro adds a name to.
PASTED = {"tw_halved_", "tw_join_", "tw_across_", "tw_merged_", "tw_running_"}


def test_every_name_is_declared_by_something_that_is_found():
    """A name that no item declares would be left out. What declares nothing is always kept."""
    folder = Path(torchweld.__file__).parent / "templates"
    headers = [common_header(), *(path.read_text() for path in folder.rglob("*.h"))]
    indexed = [_indexed(text) for text in headers]
    used = {word for items, _ in indexed for _, words in items for word in words}
    kept = {word for items, names in indexed for at in names[None] for word in items[at][1]}
    declared = {name for _, names in indexed for name in names}
    assert used - kept - declared <= GIVEN | PASTED
    assert len(indexed) > 6 and len(used) > 200


def test_a_kernel_has_what_it_uses_and_no_more():
    kernel = "float one(float x) { return tw_log2(x); }\n"
    text = with_headers(kernel)
    assert "TW_WIDE1(log2," in text and "double tw_wide_log(double" in text
    assert "#define TW_WIDE1(" in text and "TW_WIDE1(tan," not in text and "tw_erf" not in text
    assert kernel_alone(text) == kernel
    lanes = with_headers("tw_across_max(b);")
    assert "TW_LANES(max," in lanes and "TW_LANES(sum," in lanes  # which adds up what is NaN
    assert "TW_LANES(min," not in lanes
    running = with_headers("tw_running_max(A1, s0, to - from, c1);")
    assert "TW_RUNNING(max," in running and "TW_RUNNING(min," not in running
