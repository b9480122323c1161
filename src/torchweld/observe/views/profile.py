"""A profile on a terminal: where the time goes, by kernel and by module, and what fusion would
save. Readable at 80 columns."""

from __future__ import annotations

import io
import math
import os
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from torchweld.core.grouped import grouped
from torchweld.core.units import bytes_text, counted, general, number_text
from torchweld.observe.record.profile import Kernel, Opportunity, Place, Profile
from torchweld.observe.views.rows import KernelRow, kernel_rows, operations_text
from torchweld.observe.views.terminal import and_more, table_of

SHOWN = 12  # rows of each table; --json has all
_MODULE_SHARE = 0.02  # of the time; modules below are not shown
_LONG_NAME = 26
_LIMITS_LOW = "these limits are too low: the machine was busy when they were measured\n"
_BUSY = 0.4  # bias of the prediction from which on the device is suspected


def show(profile: Profile, console: Console) -> None:
    """Prints `profile_view(profile)`."""
    console.print(profile_view(profile))


def plain_text(profile: Profile) -> str:
    """The tables as text, 80 columns wide."""
    console = Console(width=80, file=io.StringIO(), record=True, no_color=True)
    show(profile, console)
    return console.export_text().rstrip()


def profile_view(profile: Profile) -> RenderableType:
    """The profile as tables for a terminal."""
    parts = [_heading(profile), _totals(profile), Text()]
    if profile.kernels:
        parts += [_kernels(profile), Text(), _modules(profile), Text()]
    else:
        parts.append(Text("no kernel ran: the target computes nothing with these inputs\n"))
    if profile.memory:
        parts += [_memory(profile), Text()]
    if profile.opportunities:
        parts += [_opportunities(profile.opportunities), Text()]
    parts.append(_accuracy(profile))
    return Group(*parts, *(Text(f"warning: {w}") for w in profile.warnings))


def _heading(profile: Profile) -> Text:
    line, what = profile.roofline, "forward + backward" if profile.train else "forward"
    where = line.name + (f", {line.threads} threads" if line.device == "cpu" else "")
    return Text.assemble(
        (profile.target, "bold"),
        f" {profile.way}, {what}, inputs {', '.join(profile.inputs)}\n{where}, torch "
        f"{profile.versions['torch']}: memory {line.memory_bytes_per_s / 1e9:.0f} GB/s, products "
        f"{number_text(int(line.flops_per_s(_dtype(profile), True)))}flop/s, launch "
        f"{line.launch_us:.1f} us\n{'' if line.trusted else _LIMITS_LOW}")


def _dtype(profile: Profile) -> str:
    """Of most of the products."""
    flops: dict[str, float] = defaultdict(float)
    for kernel in profile.kernels:
        flops[kernel.dtype] += kernel.flops if kernel.product else 0.0
    return max(flops, key=flops.get, default="float32")


def _totals(profile: Profile) -> Text:
    totals, energy = profile.totals, profile.energy
    share = totals.host_bound_us / totals.step_us if totals.step_us else 0.0
    power = f"{energy.joules:.3g} J, {energy.watts:.0f} W" if energy.joules else "-"
    return Text(
        f"step {us_text(totals.step_us)} us (+-{us_text(totals.step_iqr_us / 2)}), kernels "
        f"{us_text(totals.busy_us)} us, waiting for the host {us_text(totals.host_bound_us)} us "
        f"({share:.0%})\nkernels tied to an operation: {totals.tied_share:.0%} of their time; "
        f"energy {power}")


def _kernels(profile: Profile) -> Table:
    table = table_of("kernel, where from", "calls", "us", "predicted", "bytes", "limit, reached",
                     title="Kernels, by time")
    rows = kernel_rows(profile, _looks)
    for row in rows[:SHOWN]:
        predicted = "-" if row.predicted_us is None else us_text(row.predicted_us)
        limit = "-" if row.limit_share is None else f"{row.limit_share:.0%}"
        table.add_row(_kernel_text(row), str(row.calls), us_text(row.measured_us), predicted,
                      bytes_text(row.bytes), f"{row.regime} {limit}")
    return and_more(table, len(rows), SHOWN)


def _looks(kernel: Kernel) -> tuple:
    """Kernels of the same operations on the same lines are one row."""
    return kernel.family, tuple((p.op, p.source) for p in kernel.places), kernel.phase


def _kernel_text(row: KernelRow) -> str:
    """The name, and where it comes from."""
    kernel = row.first
    name = _short_name(replace(kernel, name=row.name))
    name = name if len(name) <= _LONG_NAME else name[: _LONG_NAME - 2] + ".."
    if not kernel.places:
        return name
    module = _common([k.places[0].module for k in row.kernels])
    return "\n".join([name, *_told(_lines(kernel.places)), *_told(module, "@ ")])


def _told(text: str, before: str = "") -> list[str]:
    """A line below the name, of a long text its end."""
    if not text:
        return []
    return [f"  {before}{text if len(text) <= _LONG_NAME else '..' + text[2 - _LONG_NAME :]}"]


def _short_name(kernel: Kernel) -> str:
    """aten::mm -> mm;  void at::native::vectorized<4, ...>(...) -> mul: vectorized"""
    if kernel.kind == "library" and kernel.name.startswith(("aten.", "torchweld.")):
        return kernel.places[0].short_op
    plain = kernel.name.removeprefix("void ").replace("(anonymous namespace)::", "")
    name = re.sub(r"[<(].*", "", plain)
    if name.startswith("aten::"):
        return name.removeprefix("aten::")
    short = name.rpartition("::")[2]
    tells = kernel.kind != "generated" and len(kernel.places) == 1
    return f"{kernel.places[0].short_op}: {short}" if tells else short


def _common(modules: Sequence[str]) -> str:
    """["layer.0.fc", "layer.1.fc"] -> layer.*.fc"""
    parts = [module.split(".") for module in modules]
    if len({len(p) for p in parts}) > 1:
        return "several modules"
    return ".".join(column[0] if len(set(column)) == 1 else "*" for column in zip(*parts))


def _lines(places: Sequence[Place]) -> str:
    """models.py:60, or the first of several."""
    lines = list(dict.fromkeys(_short(p.source) for p in places if p.source))
    return lines[0] if len(lines) == 1 else f"{lines[0]}, .." if lines else ""


def _short(source: str) -> str:
    return os.path.basename(source)


def _modules(profile: Profile) -> Table:
    table = table_of("module", "kernels", "us", "share", "predicted", "bytes", title="Modules")
    total = max(profile.modules[0].measured_us, 1e-9)
    alike = grouped(profile.modules, lambda module: general(module.path))
    shown = [(path, same) for path, same in alike.items()
             if sum(m.measured_us for m in same) >= _MODULE_SHARE * total]
    for path, same in shown[: 2 * SHOWN]:
        us = sum(m.measured_us for m in same)
        table.add_row(_module_name(path, len(same)), str(sum(m.kernels for m in same)), us_text(us),
                      f"{us / total:.0%}", us_text(sum(m.predicted_us for m in same)),
                      bytes_text(sum(m.bytes for m in same)))
    return and_more(table, len(shown), 2 * SHOWN)


def _module_name(path: str, count: int) -> str:
    """Its last part, below its parent; how many there are, if layers are taken together."""
    depth = path.count(".") + bool(path)
    return "  " * depth + (path.rpartition(".")[2] or "the whole") + f" x{count}" * (count > 1)


def _memory(profile: Profile) -> RenderableType:
    memory = profile.memory
    text = f"peak {bytes_text(memory.peak_bytes)} beside {bytes_text(memory.resident_bytes)} of "
    text += "parameters and inputs"
    if not memory.alive:
        return Text(text)
    table = table_of("alive at the peak, made by", "what", "bytes", title=f"Memory: {text}")
    for alive in memory.alive[: SHOWN // 2]:
        place = alive.place
        where = f"{place.short_op}, {_short(place.source)} @ {place.module}" if place else "-"
        table.add_row(where.removesuffix(" @ "), f"{alive.what} {alive.role}",
                      bytes_text(alive.bytes))
    return and_more(table, len(memory.alive), SHOWN // 2)


def _opportunities(found: Sequence[Opportunity]) -> Table:
    table = table_of("fuse", "times", "saves us", "saves bytes", "sure",
                     title="What fusion would save")
    for one in found[:SHOWN]:
        ops = operations_text(one.places)
        gone = ", ".join(counted(one.intermediates)) or "no tensor"
        verb = "vanish" if one.intermediates[1:] else "vanishes"
        table.add_row(f"{ops}\n  @ {_lines(one.places)}; {gone} {verb}", str(one.repeats),
                      us_text(one.saved_us), bytes_text(one.saved_bytes), one.confidence)
    return and_more(table, len(found), SHOWN)


def _accuracy(profile: Profile) -> Text:
    found = profile.accuracy
    if found.median_abs_log is None:
        return Text("nothing could be predicted" if profile.kernels else "")
    largest = (profile.kernels[k] for k in found.worst)
    worst = list(dict.fromkeys(f"{_short_name(replace(k, name=k.family))} {math.exp(k.miss):.2g}x"
                               for k in largest))[:3]  # fmt: skip
    if found.bias is not None and abs(found.bias) > _BUSY:
        worst.append(
            f"all together {math.exp(found.bias):.1f}x: the device is slower than when it was "
            "measured. Is something else running?")
    return Text(
        f"prediction: median |log(measured / predicted)| {found.median_abs_log:.2f} over "
        f"{found.kernels} kernels, {found.within_two:.0%} within a factor of two; largest misses: "
        f"{', '.join(worst)}")


def us_text(us: float) -> str:
    """Three significant digits, no exponent."""
    return f"{us:.3g}" if us < 1000 else f"{us:.0f}"
