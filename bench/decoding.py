"""generate() of transformers: tokens a second, first calls, compilations, and where a token's time
goes.

    python bench/decoding.py                              # the GPU if there is one, else the CPU
    python bench/decoding.py --device cpu --layers 4 --hidden 256 --new 32

Each way makes the same number of new tokens for the same prompt, batch by batch:

    eager            default, growing cache
    static compiled  static cache, transformers' own torch.compile (Inductor, reduce-overhead)
    static backend   the same with CompileConfig(backend="torchweld")
    fuse static      torchweld.fuse, static cache
    fuse default     torchweld.fuse, default cache

`call` is the host's time in the model's call, `device` what the GPU takes for it (events around the
call; on a CPU the call itself), `rest` what transformers does beside it, per token in ms.
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import dataclass, field

import torch
from transformers import CompileConfig, LlamaConfig, LlamaForCausalLM

import torchweld

WAYS = ("eager", "static compiled", "static backend", "fuse static", "fuse default")


@dataclass
class Calls:
    """Host and device time of a model's calls."""

    device: str
    host_s: list[float] = field(default_factory=list)
    events: list[tuple] = field(default_factory=list)

    def around(self, call):
        def timed(*args, **kwargs):
            if self.device == "cuda":
                before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                before.record()
            start = time.perf_counter()
            result = call(*args, **kwargs)
            self.host_s.append(time.perf_counter() - start)
            if self.device == "cuda":
                after.record()
                self.events.append((before, after))
            return result

        return timed

    def per_token_ms(self) -> tuple[float, float]:
        """(host, device), medians, without the first call: the prompt's."""
        host = statistics.median(self.host_s[1:]) * 1e3
        if self.device != "cuda":
            return host, host
        torch.cuda.synchronize()
        return host, statistics.median(a.elapsed_time(b) for a, b in self.events[1:])


def model_of(asked: argparse.Namespace) -> torch.nn.Module:
    """A Llama of about 1.2 G parameters, unless other sizes are asked for."""
    torch.manual_seed(0)
    heads = asked.hidden // 64
    config = LlamaConfig(
        vocab_size=asked.vocabulary, hidden_size=asked.hidden, intermediate_size=4 * asked.hidden,
        num_hidden_layers=asked.layers, num_attention_heads=heads, tie_word_embeddings=True,
        num_key_value_heads=max(heads // 4, 1), max_position_embeddings=8192,
        bos_token_id=None, eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    dtype = torch.bfloat16 if asked.device == "cuda" else torch.float32
    return LlamaForCausalLM(config).to(asked.device, dtype).eval()


def settings(way: str, device: str) -> dict:
    if "static" not in way:
        return {}
    told = {"cache_implementation": "static"}
    if way == "eager" or "fuse" in way:
        return told
    backend = "torchweld" if "backend" in way else "inductor"
    config = CompileConfig(backend=backend)
    config._compile_all_devices = device == "cpu"
    return told | {"compile_config": config}


def wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def run(model, given: torch.Tensor, new: int, told: dict) -> float:
    """Seconds of one generate()."""
    wait(given.device.type)
    start = time.perf_counter()
    model.generate(given, max_new_tokens=new, min_new_tokens=new, do_sample=False, **told)
    wait(given.device.type)
    return time.perf_counter() - start


def breakdown(model, way: str, given: torch.Tensor, new: int, told: dict) -> tuple[float, float]:
    """(host, device) ms of the model's call, per token."""
    calls = Calls(given.device.type)
    if "fuse" in way:
        state = model._torchweld
        kept, state.call = state.call, calls.around(state.call)
    else:
        compiled = way != "eager"
        name = "_compiled_call" if compiled else "forward"
        kept = getattr(model, name)
        setattr(model, name, calls.around(kept))
    try:
        run(model, given, new, told)
    finally:
        if "fuse" in way:
            del state.call
        else:
            setattr(model, name, kept)
            if name == "forward":
                del model.forward
    return calls.per_token_ms()


def compilations(model, way: str) -> int:
    """Graphs that were compiled so far."""
    if "fuse" in way:
        return len(torchweld.records(model))
    return torch._dynamo.utils.counters["stats"].get("unique_graphs", 0)


def measure(model, way: str, asked: argparse.Namespace) -> None:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    vars(model).pop("_compiled_call", None)
    used = torchweld.fuse(model) if "fuse" in way else model
    told = settings(way, asked.device)
    for batch in asked.batches:
        given = torch.randint(1, asked.vocabulary, (batch, asked.prompt), device=asked.device)
        first = run(used, given, asked.new, told)
        second = run(used, given, asked.new, told)
        seconds = statistics.median(run(used, given, asked.new, told) for _ in range(asked.times))
        host, device = breakdown(used, way, given, asked.new, told)
        token = seconds / asked.new * 1e3
        print(
            f"{way:16} batch {batch:3}  first {first:6.1f} s  second {second:6.2f} s  "
            f"graphs {compilations(used, way):2}  {batch * asked.new / seconds:8.1f} tokens/s  "
            f"token {token:7.3f} ms = call {host:7.3f} + rest {token - host:7.3f}  "
            f"device {device:7.3f}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--hidden", type=int, default=2048)
    parser.add_argument("--vocabulary", type=int, default=128256)
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--new", type=int, default=128)
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=WAYS)
    asked = parser.parse_args()
    model = model_of(asked)
    millions = sum(p.numel() for p in model.parameters()) / 1e6
    print(f"{millions:.0f} M parameters, {asked.device}, {torch.__version__}", flush=True)
    for way in asked.ways:
        measure(model, way, asked)


if __name__ == "__main__":
    main()
