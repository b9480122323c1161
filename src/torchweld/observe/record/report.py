"""A report as data: what `--json` writes and what the tables show.

The text beside each type is the field's description in the schema.
"""
from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from torchweld.observe.record.profile import Place, Profile

SCHEMA_VERSION = 2


@dataclass(frozen=True)
class Machine:
    """Where it was measured."""

    device: Annotated[str, "cpu or cuda"]
    name: Annotated[str, "model of the processor or GPU, as the system names it"]
    threads: Annotated[int, "CPU threads that torch uses"]
    python: Annotated[str, "version of Python"]
    torch: Annotated[str, "version of torch"]
    torchweld: Annotated[str, "version of torchweld"]
    triton: Annotated[str | None, "version of Triton, null if there is none"]


@dataclass(frozen=True)
class Subject:
    """What was measured, and the command that did."""

    target: Annotated[str, "name in the zoo, or path/to/file.py:function"]
    inputs: Annotated[list[str], "dtype and shape of each example input"]
    dtype: Annotated[str, "dtype of the model's first floating parameter"]
    parameters: Annotated[int, "number of parameters"]
    train: Annotated[bool, "true: forward, loss and backward; false: forward without gradients"]
    command: Annotated[str, "the command that made this report; empty: not made by one"] = ""
    seed: Annotated[int | None, "seed of weights and inputs; null: a file's own"] = None


@dataclass(frozen=True)
class Timing:
    """Paired: in each round every way runs once, in changing order, in one process."""

    rounds: Annotated[int, "number of rounds"]
    median_ms: Annotated[float, "median time of a call, milliseconds"]
    iqr_ms: Annotated[float, "distance between the quartiles of that time, milliseconds"]
    ratio: Annotated[float, "median over the rounds of this way's time / torchweld's time"]
    ratio_low: Annotated[float, "first quartile of that ratio"]
    ratio_high: Annotated[float, "third quartile of that ratio"]
    processor_share: Annotated[
        float | None,
        "processor time that the process got / that it asked for, while all ways were timed; null "
        "where the system does not count it"] = None


@dataclass(frozen=True)
class Error:
    """Distance from the same model in float64, worst over outputs (and gradients in training);
    those that eager gets wrong by half, such as gradients that are zero but for rounding, are
    left out."""

    relative_l2: Annotated[float, "L2 norm of the difference / L2 norm of the reference"]
    maximum: Annotated[float, "largest difference / largest magnitude of the reference"]
    within_contract: Annotated[
        bool | None, "whether it keeps torchweld's error contract; null for eager, its measure"]


@dataclass(frozen=True)
class Way:
    """One way of running the model. A figure that could not be had is null."""

    name: Annotated[
        str, "eager, inductor, inductor-reduce-overhead, inductor-max-autotune or torchweld"]
    problem: Annotated[str | None, "why it did not run, in one line; null if it ran"] = None
    timing: Annotated[Timing | None, "times of a call, once warm"] = None
    kernels: Annotated[
        int | None,
        "kernels launched by a call. CUDA: kernels in a profiler trace. CPU: ATen operations that "
        "are no views (eager), calls in the code that it generated (inductor), generated kernels "
        "and library calls in its programs (torchweld)"] = None
    bytes_moved: Annotated[
        int | None,
        "estimated bytes read and written by a call: arguments and results of each operation "
        "(eager), distinct bytes of each kernel and library call (torchweld)"] = None
    peak_bytes: Annotated[
        int | None,
        "most memory in use besides the model and its inputs: what the way keeps between calls "
        "plus what one call adds. CUDA: the caching allocator's count. CPU: live tensors, and the "
        "profiler's count of allocations"] = None
    first_call_s: Annotated[float | None, "seconds of the first call, with compilation"] = None
    first_call_cache: Annotated[
        str | None,
        "cold if that call found nothing in its cache on disk, else warm; null without one"] = None
    error: Annotated[Error | None, "error against float64"] = None


@dataclass(frozen=True)
class Source:
    """Generated code of one kernel."""

    language: Annotated[str, "cpp, triton or gluon"]
    name: Annotated[str, "function, as a trace names it"]
    text: Annotated[str, "its text, without the prelude that all C++ kernels share"]


@dataclass(frozen=True)
class KernelError:
    """A kernel run alone on normal random numbers, against the same operations in float64."""

    fused_l2: Annotated[float, "L2 norm of the kernel's error / L2 norm of the result"]
    aten_l2: Annotated[float, "the same for ATen operations one by one"]
    fused_max: Annotated[float, "largest error of the kernel / largest magnitude"]
    aten_max: Annotated[float, "the same for ATen operations one by one"]


@dataclass(frozen=True)
class Group:
    """Operations that became one kernel."""

    kernel: Annotated[
        str, "name of the generated kernel, or of a library call that does it all (the first, if "
        "it repeats)"]
    operations: Annotated[list[Place], "the ATen operations in it"]
    bytes_before: Annotated[
        int, "predicted bytes moved with a kernel for each operation; what several groups repeat "
        "counts in one of them"]
    bytes_after: Annotated[int, "predicted bytes moved by the fused kernel"]
    saved_us: Annotated[float, "predicted microseconds saved by one such kernel"]
    repeats: Annotated[int, "how many such kernels the graph has"] = 1
    sources: Annotated[list[Source], "its generated code, of the first if it repeats"] = field(
        default_factory=list)
    error: Annotated[KernelError | None, "null: not measured, or it computes no floats"] = None


@dataclass(frozen=True)
class Made:
    """What makes a generated kernel, and why. Equal kernels of repeated layers are one."""

    kernels: Annotated[list[str], "names of the kernels that are made so"]
    functions: Annotated[list[str], "the functions of the first, as a trace of a GPU names them"]
    template: Annotated[str, "the template that makes it"]
    schedule: Annotated[str, "how it is tiled, in the template's own terms"]
    predicted_us: Annotated[float, "predicted microseconds of one of them"]
    reason: Annotated[str, "why no more special template makes it; empty: none would fit"]


@dataclass(frozen=True)
class Apart:
    """Neighbours that were not fused; those that look alike are one."""

    producer: Annotated[Place, "the last operation of the kernel or call that writes"]
    consumer: Annotated[Place, "the first operation of the kernel or call that reads"]
    evidence: Annotated[str, "the names, sizes or axes that decided it"]
    pairs: Annotated[int, "how many pairs look alike"]
    bytes_at_stake: Annotated[int, "bytes that they exchange through memory"]


@dataclass(frozen=True)
class Refused:
    """Neighbours that were not fused, by reason."""

    reason: Annotated[str, "why"]
    pairs: Annotated[int, "how many pairs of neighbours"]
    bytes_at_stake: Annotated[int, "bytes that those pairs exchange through memory"]
    example: Annotated[str, "the pair with the most bytes, and the evidence"]
    cost_us: Annotated[float, "predicted microseconds to write those bytes and read them again"]
    advice: Annotated[str, "what can be changed in the model; empty: nothing"]
    apart: Annotated[list[Apart], "the pairs with the most bytes"] = field(default_factory=list)


@dataclass(frozen=True)
class Saved:
    """Tensors that a forward keeps for its backward; those that look alike are one."""

    operation: Annotated[Place, "the last operation of the kernel or call that makes it"]
    bytes: Annotated[int, "bytes of one, at the sizes seen at capture"]
    count: Annotated[int, "how many look alike"] = 1


@dataclass(frozen=True)
class GraphPart:
    """One compiled graph. A model has several if its forward breaks, and more in training."""

    name: Annotated[str, "name of the graph"]
    kind: Annotated[str, "inference, forward or backward"]
    groups: Annotated[list[Group], "fused groups, the largest saving first"]
    unfused: Annotated[int, "generated kernels that hold one operation"]
    library_calls: Annotated[dict[str, int], "library call -> how often"]
    refusals: Annotated[list[Refused], "why neighbours were left apart, the most bytes first"]
    events: Annotated[list[str], "fallbacks and other things that did not go as planned"]
    seconds: Annotated[dict[str, float], "stage of compilation -> seconds"]
    kernels: Annotated[
        list[Made], "what makes each generated kernel, those of the most time first"] = field(
        default_factory=list)
    saved: Annotated[
        list[Saved], "what a forward keeps for its backward, the most bytes first"] = field(
        default_factory=list)


@dataclass(frozen=True)
class Report:
    """`torchweld report` in one record."""

    schema_version: Annotated[int, "2; raised when a field changes its meaning"]
    date: Annotated[str, "when, UTC, ISO 8601"]
    machine: Annotated[Machine, "where"]
    subject: Annotated[Subject, "what"]
    ways: Annotated[list[Way], "the ways measured, torchweld last"]
    graphs: Annotated[list[GraphPart], "what torchweld made of the model"] = field(
        default_factory=list)
    warnings: Annotated[list[str], "what torchweld could not do as planned, in this process"] = (
        field(default_factory=list))
    profiles: Annotated[
        list[Profile], "each kernel before (eager) and after (torchweld); empty: not asked for"
    ] = field(default_factory=list)
