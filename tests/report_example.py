"""A report written by hand, with profiles: what the page is made of, in every part."""

from __future__ import annotations

import math

from torchweld.observe.record.profile import SCHEMA_VERSION as PROFILE_VERSION
from torchweld.observe.record.profile import (
    Accuracy,
    Alive,
    Energy,
    Gap,
    Kernel,
    Launch,
    Memory,
    ModuleSum,
    Place,
    Profile,
    Roofline,
    Totals,
)
from torchweld.observe.record.report import (
    SCHEMA_VERSION,
    Apart,
    Error,
    GraphPart,
    Group,
    KernelError,
    Machine,
    Made,
    Refused,
    Report,
    Source,
    Subject,
    Timing,
    Way,
)

LAYERS = 6
LINEAR, GELU, MUL, NORM = (
    "aten.addmm.default",
    "aten.gelu.default",
    "aten.mul.Tensor",
    "aten.native_layer_norm.default",
)
ROOF = Roofline("cpu", "A processor", 4, 4.0, 2e10, 9e10, 32 << 20, {"float32": 4e11}, 6e10)
HOSTILE = "x < y && </script><script>alert(1)</script>"  # what a source text may hold
CODE = f"""extern "C" void tw_1(void* const* P, const int64_t* S) {{
  const float* p0 = (const float*)P[0];  // {HOSTILE}
  for (int64_t i = 0; i < 4096; ++i) out[i] = p0[i] * 0.5f;
}}
"""


def example(energy: bool = True) -> Report:
    """Eager against torchweld; `energy`: whether the device counts joules."""
    return Report(
        schema_version=SCHEMA_VERSION,
        date="2026-11-20T12:00:00+00:00",
        machine=Machine("cpu", "A processor", 4, "3.12.1", "2.13.0", "0.1.0", None),
        subject=Subject("geglu", ["float32[64, 512]"], "float32", 3_150_000, False,
                        "torchweld report geglu --html page.html", 0),
        ways=_ways(),
        graphs=[_graph()],
        warnings=["graph1 runs unfused: it has a complex number among its arguments"],
        profiles=[_profile("eager", energy), _profile("torchweld", energy)],
    )


def _ways() -> list[Way]:
    return [
        Way("eager", timing=Timing(41, 1.46, 0.03, 1.52, 1.49, 1.56), kernels=24,
            bytes_moved=41_000_000, peak_bytes=9_000_000, first_call_s=0.02,
            error=Error(3.1e-7, 2e-6, None)),
        Way("inductor", timing=Timing(41, 1.11, 0.02, 1.16, 1.14, 1.18), kernels=18,
            peak_bytes=7_000_000, first_call_s=6.2, first_call_cache="cold",
            error=Error(3.0e-7, 1.8e-6, True)),
        Way("inductor-max-autotune", problem="RuntimeError: no <b>autotuning</b> here"),
        Way("torchweld", timing=Timing(41, 0.96, 0.02, 1.0, 1.0, 1.0), kernels=12,
            bytes_moved=27_000_000, peak_bytes=6_000_000, first_call_s=2.2,
            first_call_cache="cold", error=Error(2.9e-7, 1.9e-6, True)),
    ]  # fmt: skip


def _graph() -> GraphPart:
    places = [Place(op, "layers.0", f"model.py:{12 + k}") for k, op in enumerate((GELU, MUL, NORM))]
    linear = Place(LINEAR, "layers.0.up", "model.py:11")
    return GraphPart(
        "graph0", "inference",
        [
            Group("fused_gelu_mul_norm", places, 6_000_000, 2_000_000, 38.5, LAYERS,
                  [Source("cpp", "tw_1", CODE)], KernelError(9e-8, 1.2e-7, 8e-7, 9e-7)),
            Group("fused_add", places[1:2] * 2, 400_000, 300_000, 1.2, 1),
        ],
        2, {LINEAR: LAYERS},
        [
            Refused("one side is a library call", LAYERS, 12_582_912, "addmm -> gelu", 1258.3,
                    "Nothing in most models.",
                    [Apart(linear, places[0], LINEAR, LAYERS, 12_582_912)]),
            Refused("fusing is not predicted to be faster", 1, 65_536, "a -> b", 6.6, "",
                    [Apart(places[1], places[2], "", 1, 65_536)]),
        ],
        ["packed: 3 times, such as w0: kept twice (3 kB)"],
        {"lower": 0.21, "plan": 0.4, "generate": 0.1, "load": 1.2},
        [Made([f"fused_gelu_mul_norm{n}" for n in ("", *(f"_{k}" for k in range(1, LAYERS)))],
              ["tw_1"], "pointwise_reduce/cpu", "rows <of> 512", 36.2, "not gemm/cpu: no sum"),
         Made(["fused_add"], ["tw_2"], "pointwise_reduce/cpu", "one", 1.1, "")],
    )  # fmt: skip


def _profile(way: str, energy: bool) -> Profile:
    kernels = [k for layer in range(LAYERS) for k in _layer_kernels(way, layer)]
    launches, now = [], 3.0
    for kernel in kernels:
        launches.append(Launch(kernel.id, now, kernel.measured_us))
        now += kernel.measured_us + (4.0 if way == "eager" else 0.5)
    busy = sum(k.measured_us for k in kernels)
    return Profile(
        PROFILE_VERSION, "geglu", way, False, ["float32[64, 512]"],
        {"python": "3.12.1", "torch": "2.13.0", "torchweld": "0.1.0"}, 5, ROOF,
        Totals(now, 21.0, now * 1.1, busy, now - busy, [Gap(0.0, 3.0, None, 0)], 0.98),
        kernels, launches, _modules(kernels), _memory(way, now), [], _accuracy(kernels),
        Energy(0.061 if way == "eager" else 0.038, 65.0, 4.0) if energy
        else Energy(None, None, 0.0, "this device counts no energy"),
    )  # fmt: skip


# name, op, measured, predicted, bytes, flops, product, regime
_EAGER = (
    ("aten::addmm", LINEAR, 120.0, 110.0, 1_400_000, 6.7e7, True, "compute"),
    ("aten::gelu", GELU, 60.0, 30.0, 600_000, 4e6, False, "memory"),
    ("aten::mul", MUL, 21.0, 20.0, 900_000, 1e5, False, "memory"),
    ("aten::native_layer_norm", NORM, 30.0, 31.0, 600_000, 8e5, False, "memory"),
)
_FUSED = (
    ("addmm", LINEAR, 118.0, 110.0, 1_400_000, 6.7e7, True, "compute"),
    ("fused_gelu_mul_norm", "", 38.0, 36.0, 800_000, 5e6, False, "memory"),
)


def _layer_kernels(way: str, layer: int) -> list[Kernel]:
    rows = _EAGER if way == "eager" else _FUSED
    kinds = {"aten::addmm": "operator", "addmm": "library", "fused_gelu_mul_norm": "generated"}
    return [
        Kernel(
            layer * len(rows) + position,
            name if way == "eager" or layer == 0 or not name.startswith("fused")
            else f"{name}_{layer}",
            kinds.get(name, "operator"), _places(op, layer), "forward", "float32", 1,
            measured * (1 + 0.01 * layer), predicted, moved, flops, product, regime,
            min(1.0, predicted / measured),
        )
        for position, (name, op, measured, predicted, moved, flops, product, regime)
        in enumerate(rows)
    ]  # fmt: skip


def _places(op: str, layer: int) -> list[Place]:
    ops = (op,) if op else (GELU, MUL, NORM)
    lines = {LINEAR: 11, GELU: 12, MUL: 13, NORM: 14}
    below = {LINEAR: ".up"}
    return [Place(o, f"layers.{layer}{below.get(o, '')}", f"model.py:{lines[o]}") for o in ops]


def _modules(kernels: list[Kernel]) -> list[ModuleSum]:
    def total(path: str) -> ModuleSum:
        below = [k for k in kernels if k.places[0].module.startswith(path)]
        return ModuleSum(path, len(below), sum(k.measured_us for k in below),
                         sum(k.predicted_us or 0 for k in below), sum(k.bytes or 0 for k in below),
                         sum(k.flops or 0 for k in below))

    return [total(""), *(total(f"layers.{layer}") for layer in range(LAYERS))]


def _memory(way: str, end: float) -> Memory:
    most = 9_000_000 if way == "eager" else 6_000_000
    steps = 40
    line = [(end * k / steps, int(most * abs(math.sin(1 + k / 3)))) for k in range(steps)]
    peak_at, peak = max(line, key=lambda point: point[1])
    alive = [Alive(2_000_000, "float32[64, 2048]", Place(GELU, "layers.2", "model.py:12"),
                   "temporary"),
             Alive(131_072, "float32[64, 512]", None, "input")]
    return Memory(peak, 12_600_000, peak_at, line, alive)


def _accuracy(kernels: list[Kernel]) -> Accuracy:
    missed = sorted((k for k in kernels if k.miss), key=lambda k: -abs(k.miss))
    logs = sorted(abs(k.miss) for k in missed)
    return Accuracy(len(kernels), logs[len(logs) // 2], 0.2, 0.96,
                    [k.id for k in missed[:2] if abs(k.miss) > 0.4])
