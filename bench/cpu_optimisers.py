"""Steps of torch.optim on the CPU, paired: eager's three implementations, torch.compile, torchweld.

    python bench/cpu_optimisers.py [--kinds adamw,sgd] [--tensors 24] [--side 512] [--rounds 15]
"""
import argparse
import statistics
import time

import torch

KINDS = {
    "adamw": lambda p, **k: torch.optim.AdamW(p, lr=1e-3, **k),
    "sgd": lambda p, **k: torch.optim.SGD(p, lr=1e-3, momentum=0.9, nesterov=True, **k),
    "adagrad": lambda p, **k: torch.optim.Adagrad(p, lr=1e-3, **k),
    "rmsprop": lambda p, **k: torch.optim.RMSprop(p, lr=1e-3, momentum=0.9, **k),
}
WAYS = {
    "eager": ({"foreach": False}, None),
    "eager foreach": ({"foreach": True}, None),
    "eager fused": ({"fused": True}, None),
    "torch.compile": ({"foreach": True}, "inductor"),
    "torchweld": ({"foreach": True}, "torchweld"),
}


def parameters(tensors: int, side: int) -> list:
    torch.manual_seed(0)
    made = [torch.nn.Parameter(torch.randn(side, side)) for _ in range(tensors)]
    for parameter in made:
        parameter.grad = torch.randn_like(parameter)
    return made


def step_of(kind: str, way: str, args):
    """A step, called twice; None where torch has no such implementation."""
    torch._dynamo.reset()
    options, backend = WAYS[way]
    try:
        step = KINDS[kind](parameters(args.tensors, args.side), **options).step
    except (TypeError, RuntimeError):
        return None
    run = torch.compile(step, backend=backend) if backend else step
    for _ in range(2):
        run()
    return run


def medians_ms(kind: str, args) -> dict[str, float]:
    made = {way: step_of(kind, way, args) for way in WAYS}
    steps = {way: step for way, step in made.items() if step is not None}
    seconds = {way: [] for way in steps}
    for _ in range(args.rounds):
        for way, step in steps.items():
            start = time.perf_counter()
            step()
            seconds[way].append(time.perf_counter() - start)
    return {way: statistics.median(s) * 1e3 for way, s in seconds.items()}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--tensors", type=int, default=24)
    parser.add_argument("--side", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=15)
    args = parser.parse_args()
    print("| step |", " | ".join(f"{way}, ms" for way in WAYS), "|")
    print("| --- " * (1 + len(WAYS)) + "|")
    for kind in args.kinds.split(","):
        found = medians_ms(kind, args)
        cells = (f"{found[way]:.3g}" if way in found else "" for way in WAYS)
        print(f"| {kind} |", " | ".join(cells), "|", flush=True)


if __name__ == "__main__":
    main()
