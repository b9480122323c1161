"""A profile as data: what `torchweld profile --json` writes, and what tables and pages show.

The text beside each type is the field's description. Times are microseconds of one call of the
target ("a step") unless the name says otherwise; bytes and flops are of one step, too.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import asdict, dataclass, field
from typing import Annotated

from torchweld.core.errors import UsageError
from torchweld.observe.record.reading import validated

SCHEMA_VERSION = 1
LEAST_SHARE = 0.9  # of the processors: below it, other work on the machine decides the times


@dataclass(frozen=True)
class Roofline:
    """What this device can do, measured on it."""

    device: Annotated[str, "cpu or cuda"]
    name: Annotated[str, "model of the processor or GPU, as the system names it"]
    threads: Annotated[int, "CPU threads that torch uses"]
    launch_us: Annotated[float, "time of the smallest operator: what a kernel costs at least"]
    memory_bytes_per_s: Annotated[float, "rate of a copy that fits in no cache, read plus written"]
    cache_bytes_per_s: Annotated[float, "rate of a copy that stays in a cache"]
    cache_bytes: Annotated[int, "what a copy may touch and still run at about that rate"]
    matmul_flops_per_s: Annotated[
        dict[str, float],
        "dtype -> best rate of a large square matrix product, 2 flops a multiply-add"]
    vector_flops_per_s: Annotated[float, "rate of float32 arithmetic outside matrix products"]
    generated_launch_us: Annotated[
        float, "time of a generated kernel that has nothing to do"] = 0.0
    fresh_us_per_mb: Annotated[
        float, "what a large result costs more in memory that the system has just given"] = 0.0
    operator_flops_per_s: Annotated[
        dict[str, float],
        "operator and dtype, such as 'aten::mm float32' -> its rate on a large problem"] = field(
        default_factory=dict)
    operator_us: Annotated[
        dict[str, float], "operator, such as aten::addmm -> its time on hardly any data"] = field(
        default_factory=dict)
    processor_share: Annotated[
        float | None,
        "processor time that the process got / that it asked for, while this was measured; null "
        "where the system does not count it"] = None
    measured_times: Annotated[
        int, "how often it was measured: again by the next process while the machine is busy"] = 1

    @property
    def trusted(self) -> bool:
        """Whether nothing else kept the processors busy while it was measured, as far as is
        known."""
        return self.processor_share is None or self.processor_share >= LEAST_SHARE

    def flops_per_s(self, dtype: str, product: bool) -> float:
        """The rate for a kernel of `dtype`: that of matrix products, or of plain arithmetic."""
        if not product:
            return self.vector_flops_per_s
        rates = self.matmul_flops_per_s
        return rates.get(dtype) or rates.get("float32") or self.vector_flops_per_s


def family(name: str) -> str:
    """The name of a generated kernel without the number that tells it from others like it."""
    return re.sub(r"_\d+$", "", name)


def short_name(op: str) -> str:
    """aten.add.Tensor -> add, torchweld.linear -> linear; others stay."""
    if op.startswith("torchweld."):
        return op.removeprefix("torchweld.")
    return op.removeprefix("aten.").partition(".")[0] if op.startswith("aten.") else op


def short_source(source: str) -> str:
    """.../site-packages/transformers/models/x.py:12 -> transformers/models/x.py:12; a path that is
    long otherwise loses its beginning, too."""
    inside = source.rpartition("site-packages/")[2]
    return inside if inside != source else "/".join(source.split("/")[-3:])


@dataclass(frozen=True)
class Place:
    """Where an operation comes from."""

    op: Annotated[str, "ATen overload, such as aten.add.Tensor"]
    module: Annotated[str, "path of the module that calls it, empty if there is none"] = ""
    source: Annotated[str, "file:line of the user's model, empty if it is not known"] = ""

    @staticmethod
    def of(origin) -> Place:
        """Of an `ir.nodes.Origin`."""
        return Place(origin.op, origin.module, origin.source)

    @property
    def short_op(self) -> str:
        """aten.mm.default -> mm"""
        return short_name(self.op)

    @property
    def where(self) -> str:
        """module, file:line"""
        return ", ".join(part for part in (self.module, short_source(self.source)) if part)


@dataclass(frozen=True)
class Kernel:
    """One kernel at one place of the program: on the CPU an operator, a library call or a
    generated kernel, on a GPU a device kernel. A kernel of a repeated layer is one row for each
    layer."""

    id: Annotated[int, "position in the profile's list"]
    name: Annotated[str, "of the device kernel, the generated kernel or the operator"]
    kind: Annotated[str, "operator (eager), generated, library, or copy (a driver's copy or fill)"]
    places: Annotated[list[Place], "the operations that it does, several if they were fused"]
    phase: Annotated[str, "forward or backward"]
    dtype: Annotated[str, "of its largest floating tensor, - if there is none"]
    calls: Annotated[int, "how often a step runs it"]
    measured_us: Annotated[float, "time in a step, all calls: median over the profiled steps"]
    predicted_us: Annotated[float | None, "the same, as predicted; null if the work is unknown"]
    bytes: Annotated[int | None, "read and written, each tensor once a call"]
    flops: Annotated[float | None, "arithmetic, 2 a multiply-add"]
    product: Annotated[bool, "whether the flops are those of matrix products"]
    regime: Annotated[
        str,
        "launch, memory or compute: what its time is spent on at the limit; unknown without its "
        "work"]
    limit_share: Annotated[
        float | None,
        "share of the device's limit that it reaches, 0 to 1: the least time that the roofline "
        "allows / measured"]

    @property
    def family(self) -> str:
        """The name without its number, for generated kernels."""
        return family(self.name) if self.kind == "generated" else self.name

    @property
    def miss(self) -> float | None:
        """log(measured / predicted); null if either is not known."""
        known = self.predicted_us and self.measured_us > 0
        return math.log(self.measured_us / self.predicted_us) if known else None


@dataclass(frozen=True)
class Launch:
    """One run of a kernel in the step that took the median time; a timeline is made of these."""

    kernel: Annotated[int, "id of the kernel"]
    start_us: Annotated[float, "from the start of the step"]
    duration_us: Annotated[float, "on the device"]


@dataclass(frozen=True)
class ModuleSum:
    """A module with everything below it. A kernel of several modules counts for each by its share
    of the operations."""

    path: Annotated[str, "module path, empty for the whole model"]
    kernels: Annotated[int, "kernels at or below it"]
    measured_us: Annotated[float, "time of its kernels"]
    predicted_us: Annotated[float, "predicted time of its kernels, where that is known"]
    bytes: Annotated[int, "read and written"]
    flops: Annotated[float, "arithmetic"]


@dataclass(frozen=True)
class Gap:
    """A time in which the device has no kernel."""

    start_us: Annotated[float, "from the start of the step"]
    duration_us: Annotated[float, "until the next kernel starts"]
    before: Annotated[int | None, "id of the kernel that ran last, null at the start"]
    after: Annotated[int | None, "id of the kernel that runs next, null at the end"]


@dataclass(frozen=True)
class Totals:
    """A whole step."""

    step_us: Annotated[float, "time of a step without a profiler, median"]
    step_iqr_us: Annotated[float, "distance between the quartiles of that time"]
    profiled_us: Annotated[
        float, "time of one step under the profiler: the one of median busy time, whose launches "
        "are listed"]
    busy_us: Annotated[float, "time in that step in which the device runs a kernel"]
    host_bound_us: Annotated[
        float,
        "time in which the device waits for the host: Python, dispatch, launching. step - busy, "
        "at least 0"]
    gaps: Annotated[list[Gap], "the longest idle gaps of the profiled step, longest first"]
    tied_share: Annotated[float, "share of the kernels' time that is tied to an operation, 0 to 1"]


@dataclass(frozen=True)
class Alive:
    """Memory that is held at the peak."""

    bytes: Annotated[int, "size"]
    what: Annotated[str, "dtype and shape, or the name of the buffer"]
    place: Annotated[Place | None, "the operation that made it"]
    role: Annotated[str, "parameter, input, saved, temporary or output; - if unknown"] = "-"


@dataclass(frozen=True)
class Memory:
    """Memory over a step, of tensors that operations make; parameters and inputs are beside it."""

    peak_bytes: Annotated[int, "most memory in use at a time, above what was there before"]
    resident_bytes: Annotated[int, "parameters, buffers and inputs, there all the time"]
    peak_at_us: Annotated[float | None, "when in the step, null if unknown"]
    timeline: Annotated[
        list[tuple[float, int]], "(microseconds from the start of the step, bytes in use)"]
    alive: Annotated[list[Alive], "what was held at the peak, largest first"]


@dataclass(frozen=True)
class Opportunity:
    """A fusion that the planner would make."""

    rank: Annotated[int, "1 is the one that saves most"]
    places: Annotated[list[Place], "the operations that would become one kernel"]
    repeats: Annotated[int, "how many such groups there are, in layers alike"]
    kernels: Annotated[list[int], "ids of the eager kernels that would vanish into it"]
    intermediates: Annotated[
        list[str], "dtype and shape of the tensors that would vanish, one group"]
    intermediate_bytes: Annotated[int, "their bytes, one group"]
    saved_bytes: Annotated[int, "bytes that would not be moved, all groups"]
    saved_us: Annotated[
        float,
        "microseconds that would be saved, all groups: measured_us less what the fused kernels are "
        "predicted to take, or what the planner predicts where measured_us is null"]
    measured_us: Annotated[float | None, "what those kernels take now, all groups; null if untied"]
    confidence: Annotated[str, "high, medium or low"]
    because: Annotated[str, "what the confidence rests on, in one line"]


@dataclass(frozen=True)
class Accuracy:
    """How good the prediction was, over the kernels that have one."""

    kernels: Annotated[int, "how many"]
    median_abs_log: Annotated[float | None, "median of |log(measured / predicted)|; null for none"]
    weighted_abs_log: Annotated[float | None, "the same mean, weighted by measured time"]
    within_two: Annotated[float | None, "share of kernels within a factor of two"]
    worst: Annotated[list[int], "ids of the largest misses that matter, worst first"]
    bias: Annotated[
        float | None,
        "median of log(measured / predicted), kernels of more than their launch: far from 0 if the "
        "device is not as fast as when it was measured"] = None


@dataclass(frozen=True)
class Energy:
    """Of a step, from the device's own counter over a window of seconds."""

    joules: Annotated[float | None, "per step; null where the device counts none"]
    watts: Annotated[float | None, "mean power in the window"]
    window_s: Annotated[float, "length of the window"]
    problem: Annotated[str | None, "why there is no figure, in one line"] = None


@dataclass(frozen=True, eq=False)
class Profile:
    """`torchweld.profile` in one record. `to_dict` and `from_dict` are inverse."""

    schema_version: Annotated[int, "1; raised when a field changes its meaning"]
    target: Annotated[str, "name in the zoo, path/to/file.py:function, or the callable's name"]
    way: Annotated[str, "eager, torchweld or inductor"]
    train: Annotated[bool, "true: forward, loss and backward; false: forward without gradients"]
    inputs: Annotated[list[str], "dtype and shape of each input"]
    versions: Annotated[dict[str, str], "python, torch, torchweld, and triton if there is one"]
    steps: Annotated[int, "steps profiled, after those that warm up"]
    roofline: Annotated[Roofline, "the device's measured limits"]
    totals: Annotated[Totals, "the whole step"]
    kernels: Annotated[list[Kernel], "in the order in which a step first runs them"]
    launches: Annotated[list[Launch], "the timeline of one step"]
    modules: Annotated[list[ModuleSum], "the tree of modules, parents before children"]
    memory: Annotated[Memory | None, "memory over the step; null if it was not recorded"]
    opportunities: Annotated[list[Opportunity], "possible fusions, best first; eager only"]
    accuracy: Annotated[Accuracy, "of the prediction"]
    energy: Annotated[Energy, "joules of a step"]
    warnings: Annotated[list[str], "what could not be had as planned"] = field(
        default_factory=list)

    def to_dict(self) -> dict:
        """Plain lists, dicts, numbers and strings, for JSON."""
        return asdict(self)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Profile) and vars(self) == vars(other)

    @staticmethod
    def from_dict(values: dict) -> Profile:
        """Errors: UsageError, in one line, if a field is missing or wrong, or the version is
        another."""
        version = values.get("schema_version") if isinstance(values, dict) else None
        if version != SCHEMA_VERSION:
            raise UsageError(f"this is not a profile of version {SCHEMA_VERSION}",
                             do="make it again with torchweld profile --json")
        return validated(Profile, values, "the profile")

    @staticmethod
    def from_json(text: str) -> Profile:
        """Errors: UsageError, as `from_dict`, or if `text` is cut short."""
        try:
            return Profile.from_dict(json.loads(text))
        except json.JSONDecodeError as error:
            what = f"the profile is not valid JSON: {error.msg} in line {error.lineno}"
            raise UsageError(what) from None
