"""How compiling grows with the number of equal layers: processor seconds of each stage.

    python bench/layers.py [--models llama,gpt2,vit] [--layers 12,24,48] [--train] [--target h100]

Models of transformers of small width, captured as torch.compile captures them, on fake tensors: the
target need not be here. Stages are those after capture, first with an empty cache of plans, then
from it; nothing is compiled or run. What a GPU's program needs of CUDA is left out of `load`: there
it is the order of nodes and their memory. Best of `--repeat` runs, one thread.
"""
from __future__ import annotations

import os
import subprocess
import sys

if _GUARD := os.environ.get("TORCHWELD_BENCH_GUARD"):  # before torch: see elsewhere/guard.py
    import ctypes

    ctypes.CDLL(_GUARD)

import argparse
import tempfile
import time
from collections import Counter
from types import SimpleNamespace

import torch

from growth import _NoCompilers
from torchweld import pipeline
from torchweld.capture import aot
from torchweld.capture.captured import Captured
from torchweld.capture.torch_private import fake_tensors
from torchweld.core import stages
from torchweld.core.garbage import no_garbage_collection
from torchweld.core.options import Options
from torchweld.elsewhere.guard import guard_library
from torchweld.elsewhere.plan import _run, _with_kept
from torchweld.elsewhere.shapes import on_device
from torchweld.ir.nodes import Extern
from torchweld.plan.scores.takes import taken_by
from torchweld.runtime import plan_cache
from torchweld.runtime.cache import open_cache
from torchweld.runtime.load import _reordered
from torchweld.runtime.placement import place
from torchweld.targets.find import target_asked
from torchweld.targets.target import Target
from torchweld.templates.library.calls import workspace_bytes
from torchweld.zoo import models, targets

LEAST_S = 0.004
SMALL = dict(hidden_size=128, num_attention_heads=2, intermediate_size=256)
IDS, IMAGES = ((2, 64), torch.int64), ((2, 3, 64, 64), torch.float32)
MODELS = {  # classes, configuration, the option for the number of layers, inputs, loss
    "llama": ("LlamaForCausalLM", "LlamaConfig",
              dict(use_cache=False, vocab_size=512, num_key_value_heads=1,
                   max_position_embeddings=256) | SMALL,
              "num_hidden_layers", IDS, models.shifted_cross_entropy),
    "gpt2": ("GPT2LMHeadModel", "GPT2Config",
             dict(n_embd=128, n_head=2, vocab_size=512, n_positions=128, bos_token_id=0,
                  eos_token_id=0) | models.GPT2,
             "n_layer", IDS, models.shifted_cross_entropy),
    "vit": ("ViTForImageClassification", "ViTConfig",
            dict(image_size=64, patch_size=8, num_labels=10) | models.NO_DROPOUT | SMALL,
            "num_hidden_layers", IMAGES, models.classification_loss),
}  # fmt: skip


def target_of(name: str, layers: int, train: bool, kind: str) -> targets.Target:
    made, config, values, number, (shape, dtype), loss = MODELS[name]
    with torch.device("meta"):
        model = models._transformers(made, config)(values | {number: layers})
        args = (torch.empty(shape, dtype=dtype),)
    width = torch.float32 if kind == "cpu" else torch.bfloat16
    return targets.prepare(name, model, args, None, loss, dtype=width, device="meta", train=train)


def captured(target: targets.Target, device: Target) -> list[Captured]:
    """The graphs of one step."""
    found = []

    def compile_graph(graph: Captured, options: Options):
        found.append(graph)
        plan = pipeline.finished_plan(graph, options, device)
        return _with_kept(graph, plan.graph.outputs)

    torch.compiler.reset()
    takes = lambda scores: taken_by(scores, device)  # noqa: E731
    backend = aot.make_backend(compile_graph, Options(calibrate="off"), takes=takes)
    with fake_tensors():
        target = on_device(target, device.kind)
        _run(target, torch.compile(target.model, backend=backend, dynamic=False))
    return found


def _load(stored, constants, frees_inputs: bool) -> None:
    calls = [n for n in stored.graph.nodes if isinstance(n, Extern)]
    workspaces = {n.name: workspace_bytes(n, stored.graph) for n in calls}
    graph = _reordered(stored.graph, constants, workspaces, frees_inputs)
    place(graph, stored.bundles, constants, workspaces, frees_inputs, True)


def compiled(graph: Captured, device: Target, cache: str) -> Counter[str]:
    """Seconds by stage."""
    options = Options(cache_dir=cache, calibrate="off")
    job = pipeline._Job.of(graph, options, device)
    with no_garbage_collection(), _NoCompilers(open_cache(options), 1) as compilers:
        if device.kind == "cpu":
            pipeline._compiled(job, compilers)
        else:
            stored, constants, _ = (
                pipeline._without_repeats(job, compilers) or pipeline._stored(job, compilers))
            job.stages("load", _load, stored, constants, graph.kind == "backward")
    return Counter({k: s for k, s in job.stages.seconds.items() if k != "capture"})


def measured(graphs: list[Captured], device: Target, repeat: int) -> dict[str, Counter[str]]:
    """From an empty cache of plans, and from a full one."""
    best: dict[str, Counter[str]] = {}
    for _ in range(repeat):
        with tempfile.TemporaryDirectory() as cache:
            for warmth in ("cold", "warm"):
                found = sum((compiled(g, device, cache) for g in graphs), Counter())
                if warmth not in best or found.total() < best[warmth].total():
                    best[warmth] = found
    return best


def measure(name: str, counts: list[int], train: bool, device: Target, repeat: int) -> None:
    measured(captured(target_of(name, 2, train, device.kind), device), device, 1)
    rows = []
    for count in counts:
        rows.append(measured(captured(target_of(name, count, train, device.kind), device), device,
                             repeat))  # fmt: skip
    print(f"{name}, {'training' if train else 'inference'}, {device.name}: layers {counts}")
    for warmth in ("cold", "warm"):
        found = [row[warmth] for row in rows]
        totals = [f.total() for f in found]
        print(f"  {warmth}: " + " ".join(f"{s:8.3f}" for s in totals)
              + f" s   {totals[-1] / totals[0]:.2f} x")  # fmt: skip
        for stage, seconds in found[-1].most_common():
            if seconds >= LEAST_S:
                print(f"    {stage:20}", *(f"{f[stage]:8.3f}" for f in found), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--layers", default="12,24,48")
    parser.add_argument("--train", action="store_true")
    parser.add_argument("--target", default="cpu")
    parser.add_argument("--repeat", type=int, default=2)
    asked = parser.parse_args()
    device = target_asked(asked.target)
    guard = None if device.kind == "cpu" or _GUARD else guard_library(Options())
    if guard:  # in a process of its own, that loads it first
        environment = {**os.environ, "TORCHWELD_BENCH_GUARD": str(guard)}
        again = [sys.executable, *sys.argv]
        sys.exit(subprocess.run(again, env=environment, check=False).returncode)
    torch.set_num_threads(1)
    stages.time = SimpleNamespace(perf_counter=time.process_time)  # others' work does not count
    plan_cache.device_identity = lambda name: (name,)
    for name in asked.models.split(","):
        measure(name, [int(n) for n in asked.layers.split(",")], asked.train, device, asked.repeat)
    sys.stdout.flush()
    os._exit(0)  # as elsewhere/process.py


if __name__ == "__main__":
    main()
