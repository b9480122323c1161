"""The error catalogue: every error that torchweld raises, with what to do about it."""
from __future__ import annotations


def one_line(error: BaseException) -> str:
    """The error's type and the first line of its message. torchweld's own errors that explain
    themselves have no type in front."""
    lines = str(error).strip().splitlines()
    if lines and isinstance(error, (UsageError, EnvironmentProblem, NotLowered)):
        return lines[0]
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


class TorchweldError(Exception):
    """Base of all. `str(error)` is one line: what, where, what to do."""

    def __init__(self, what: str, *, where: str = "", do: str = "") -> None:
        self.what, self.where, self.do = what, where, do
        place, advice = f" (at {where})" if where else "", f": {do}" if do else ""
        super().__init__(what + place + advice)


class UsageError(TorchweldError):
    """An argument cannot work: a wrong target, inputs that do not fit. The command line exits with
    code 2."""


class EnvironmentProblem(TorchweldError):
    """The machine lacks something: a compiler, a GPU, a writable cache. The command line exits with
    code 2."""


class BuildError(TorchweldError):
    """A generated kernel did not compile. Caught inside: the region runs as ATen operations, with
    one warning."""


class InvalidIR(TorchweldError):
    """A stage produced a program that breaks the IR's rules: a bug of torchweld. Caught inside, as
    BuildError is."""


class NotLowered(TorchweldError):
    """An ATen call has no lowering for these arguments. Caught inside: it becomes an Extern.
    `node`: the operation, where a whole graph is not lowered for its sake."""

    node: str | None = None


class IndexOutOfRange(TorchweldError, IndexError):
    """An index of the user's is outside the tensor that it points into. On a GPU the error comes at
    the next call. Eager's kernels would end the process's use of the GPU."""
