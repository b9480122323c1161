"""One thread, no compiler. Graphs of many layers: each test takes seconds."""

from no_compiler import one_thread, without_a_compiler  # noqa: F401
