"""Capture of models of transformers, in CPU seconds of the process: torch.export, and what comes
after it, torch's decomposition of the whole program or ours of each distinct call.

    python bench/capture.py                    # bert, llama, resnet, generate
    python bench/capture.py bert --repeats 5

`generate` is a first call with a static cache: its two graphs. Each way is run in turn on the same
exported program; the least of the repeats is given.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from transformers import (
    BertConfig,
    BertModel,
    LlamaConfig,
    LlamaForCausalLM,
    LlamaModel,
    ResNetConfig,
    ResNetModel,
)

import torchweld
from torchweld.capture import decompose
from torchweld.capture.decoding import traced as decoding
from torchweld.capture.decomposing import program as decomposing

WIDTHS = {
    "hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 128, "vocab_size": 128,
}  # fmt: skip


def _bert() -> tuple:
    model = BertModel(BertConfig(num_hidden_layers=12, **WIDTHS))
    return model, (torch.ones(2, 16, dtype=torch.long),), {}


def _llama() -> tuple:
    model = LlamaModel(LlamaConfig(num_hidden_layers=16, **WIDTHS))
    return model, (torch.ones(2, 16, dtype=torch.long),), {"use_cache": False}


def _resnet() -> tuple:
    return ResNetModel(ResNetConfig()), (torch.ones(2, 3, 64, 64),), {}


MODELS = {"bert": _bert, "llama": _llama, "resnet": _resnet}


def _seconds(work: Callable) -> tuple[float, object]:
    start = time.process_time()
    made = work()
    return time.process_time() - start, made


def _torchs(program):
    return program.run_decompositions(decompose.table())


def _module(name: str) -> tuple[float, float, float]:
    model, args, kwargs = MODELS[name]()
    model.eval()
    with torch.no_grad():
        export_s, program = _seconds(lambda: torch.export.export(model, args, kwargs, strict=False))
        ours_s, _ = _seconds(lambda: decomposing.decomposed(program))
        torch_s, _ = _seconds(lambda: _torchs(program))
    return export_s, torch_s, ours_s


@contextmanager
def _timed(owner, name: str, work: Callable, seconds: list[float]) -> Iterator[None]:
    given = getattr(owner, name)

    def timed(*args, **kwargs):
        spent, made = _seconds(lambda: work(*args, **kwargs))
        seconds.append(spent)
        return made

    setattr(owner, name, timed)
    try:
        yield
    finally:
        setattr(owner, name, given)


def _first_call(decompose_by: Callable) -> tuple[float, float]:
    """Seconds of both exports and of both decompositions."""
    model = LlamaForCausalLM(LlamaConfig(num_hidden_layers=8, **WIDTHS)).eval()
    fused, exports, parts = torchweld.fuse(model), [], []
    with (
        _timed(torch.export, "export", torch.export.export, exports),
        _timed(decoding, "decomposed", decompose_by, parts),
    ):
        fused.generate(
            torch.ones(2, 8, dtype=torch.long), max_new_tokens=3, min_new_tokens=3,
            do_sample=False, cache_implementation="static",
        )  # fmt: skip
    return sum(exports), sum(parts)


def _generate(_) -> tuple[float, float, float]:
    export_s, ours_s = _first_call(decomposing.decomposed)
    return export_s, _first_call(_torchs)[1], ours_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("models", nargs="*", default=[*MODELS, "generate"])
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    print(f"{'':10}{'export':>8}{'torch':>8}{'ours':>8}")
    for name in given.models:
        measure = _module if name in MODELS else _generate
        runs = [measure(name) for _ in range(given.repeats)]
        print(f"{name:10}" + "".join(f"{min(each):8.2f}" for each in zip(*runs)), flush=True)


if __name__ == "__main__":
    main()
