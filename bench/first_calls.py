"""Where the seconds of a first call go, from an empty cache, each case in a process of its own.

    python bench/first_calls.py [--only qwen3,chain]

Small widths, so that what grows with the number of layers or operations shows beside compilers:
equal layers are compiled once, and what comes after capture should hardly grow with their number.
"""
from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict

import torch
from torch import nn

from growth import Chain
from torchweld.core.stages import CompileSeconds


def chain(length: int):
    return Chain(length), torch.randn(64, 32)


def layers(count: int):
    def layer():
        return nn.TransformerEncoderLayer(64, 4, 256, 0.0, "gelu", batch_first=True)

    return nn.Sequential(*(layer() for _ in range(count))), torch.randn(2, 32, 64)


def qwen3(count: int):
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(
        vocab_size=512, hidden_size=64, intermediate_size=192, num_hidden_layers=count, head_dim=16,
        num_attention_heads=4, num_key_value_heads=2, use_cache=False,
    )  # fmt: skip
    return Qwen3ForCausalLM(config), torch.randint(512, (1, 32))


def mamba(count: int):
    from transformers import MambaConfig, MambaForCausalLM

    config = MambaConfig(vocab_size=512, hidden_size=64, num_hidden_layers=count, use_cache=False)
    return MambaForCausalLM(config), torch.randint(512, (1, 32))


def zoo(name: str):
    def make(_: int):
        from torchweld.zoo import models

        target = models.load(name, "cpu", device="cpu")
        return target.model, *target.args

    return make


CASES = {
    "bert-base": (zoo("bert-base"), 12), "gpt2": (zoo("gpt2"), 12),
    **{f"encoder x {n}": (layers, n) for n in (12, 48)},
    **{f"qwen3 x {n}": (qwen3, n) for n in (12, 48)},
    **{f"mamba x {n}": (mamba, n) for n in (2, 8)},
    **{f"chain x {n}": (chain, n) for n in (500, 1000, 2000, 4000)},
}  # fmt: skip


def measure(name: str) -> dict:
    """Seconds of the first call of fuse(model, inputs): `total` and its known parts."""
    import torchweld

    make, size = CASES[name]
    torch.manual_seed(0)
    model, *inputs = make(size)
    torch.compile(torch.neg, backend="eager")(torch.ones(()))  # imports Dynamo
    start = time.perf_counter()
    with torch.no_grad():
        fused = torchweld.fuse(model.eval(), tuple(inputs))
        fused(*inputs)
    total = time.perf_counter() - start
    parts = CompileSeconds.of(r.timings_s for r in torchweld.records(fused))
    return {"total": total, "after capture": parts.total - parts.capture} | asdict(parts)


def in_its_own_process(name: str) -> dict:
    with tempfile.TemporaryDirectory() as cache:
        command = [sys.executable, __file__, "--child", name, "--cache", cache]
        return json.loads(subprocess.run(command, capture_output=True, check=True).stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="parts of names, separated by commas")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--cache", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.child:
        import os

        os.environ["TORCHWELD_CACHE_DIR"] = asked.cache
        print(json.dumps(measure(asked.child)))
        return
    wanted = [n for n in CASES if any(part in n for part in asked.only.split(","))]
    for position, name in enumerate(wanted):
        found = in_its_own_process(name)
        if not position:
            print("| first call, s | " + " | ".join(found) + " |")
            print("|---" * (len(found) + 1) + "|")
        print(f"| {name} | " + " | ".join(f"{s:.2f}" for s in found.values()) + " |", flush=True)


if __name__ == "__main__":
    main()
