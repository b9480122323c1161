"""One thread, no compiler."""

from no_compiler import one_thread, without_a_compiler  # noqa: F401
