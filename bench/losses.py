"""A linear layer and its loss, forward and backward: time (paired) and peak memory of a step, of
eager, torch.compile, torchweld and, where it is installed, Liger.

    python bench/losses.py                                     # CPU: 2048 x 512 x 32000, float32
    python bench/losses.py --device cuda --rows 8192 --depth 4096 --classes 128256 --dtype bfloat16
    python bench/losses.py --only cross_entropy,kl --inference

Peak memory is what a call adds to what is alive before it, gradients included.
"""
from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from torchweld.core.units import bytes_text
from torchweld.observe.measure.memory import added_bytes
from torchweld.observe.measure.paired import time_paired


@dataclass(frozen=True)
class Sizes:
    rows: int
    depth: int
    classes: int
    dtype: torch.dtype
    device: str

    def matrix(self, *shape: int, grad: bool = True) -> torch.Tensor:
        """Such that the products are of the order of one."""
        made = torch.randn(*shape, dtype=self.dtype, device=self.device) * self.depth**-0.25
        return made.requires_grad_(grad)

    def x(self, grad: bool = True) -> torch.Tensor:
        return self.matrix(self.rows, self.depth, grad=grad)

    def weight(self, grad: bool = True) -> torch.Tensor:
        return self.matrix(self.classes, self.depth, grad=grad)

    def labels(self) -> torch.Tensor:
        return torch.randint(0, self.classes, (self.rows,), device=self.device)


def cross_entropy(x, weight, labels):
    return F.cross_entropy(F.linear(x, weight), labels)


def shifted(x, weight, labels):
    """As transformers writes it."""
    logits = F.linear(x, weight).float()
    labels = F.pad(labels, (0, 1), value=-100)[1:].contiguous()
    return F.cross_entropy(logits, labels, ignore_index=-100)


def smoothed(x, weight, labels):
    """Softcap, label smoothing, z-loss."""
    logits = 30 * torch.tanh(F.linear(x, weight).float() / 30)
    z = torch.logsumexp(logits, -1)
    return F.cross_entropy(logits, labels, label_smoothing=0.1) + 1e-4 * (z**2).mean()


def kl(x, weight, y, teacher):
    student = F.log_softmax(F.linear(x, weight).float(), -1)
    return F.kl_div(student, F.softmax(F.linear(y, teacher).float(), -1), reduction="batchmean")


def jsd(x, weight, y, teacher):
    p = F.log_softmax(F.linear(x, weight).float(), -1)
    q = F.log_softmax(F.linear(y, teacher).float(), -1)
    middle = torch.log(0.5 * (p.exp() + q.exp()))
    parts = (F.kl_div(middle, r, log_target=True, reduction="batchmean") for r in (p, q))
    return 0.5 * sum(parts)


def _log_probabilities(x, weight, labels):
    logits = F.linear(x, weight).float()
    return F.log_softmax(logits, -1).gather(-1, labels[..., None]).squeeze(-1)


def dpo(x, weight, labels):
    """Two halves: chosen and rejected."""
    chosen, rejected = (
        _log_probabilities(a, weight, b).sum() for a, b in zip(x.chunk(2), labels.chunk(2))
    )
    return -F.logsigmoid(0.1 * (chosen - rejected) / len(x))


def grpo(x, weight, labels, old, advantage):
    new = _log_probabilities(x, weight, labels)
    ratio = torch.exp(new - old)
    gain = torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
    drift = torch.exp(old - new) - (old - new) - 1
    return (0.04 * drift - gain).mean()


def _labelled(sizes: Sizes) -> tuple:
    return sizes.x(), sizes.weight(), sizes.labels()


def _distilled(sizes: Sizes) -> tuple:
    return sizes.x(), sizes.weight(), sizes.x(grad=False), sizes.weight(grad=False)


def _rated(sizes: Sizes) -> tuple:
    x, weight, labels = _labelled(sizes)
    with torch.no_grad():
        old = torch.full((sizes.rows,), -10.0, device=sizes.device)
    return x, weight, labels, old, torch.randn(sizes.rows, device=sizes.device)


CASES: dict[str, tuple[Callable, Callable[[Sizes], tuple]]] = {
    "cross_entropy": (cross_entropy, _labelled),
    "shifted": (shifted, _labelled),
    "smoothed": (smoothed, _labelled),
    "kl": (kl, _distilled),
    "jsd": (jsd, _distilled),
    "dpo": (dpo, _labelled),
    "grpo": (grpo, _rated),
}


def _liger(case: str) -> Callable | None:
    """Liger's fused layer and loss, where it has the case and is installed."""
    options = {"cross_entropy": {}, "shifted": {}, "smoothed": {
        "label_smoothing": 0.1, "lse_square_scale": 1e-4, "softcap": 30.0}}  # fmt: skip
    try:
        from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss
    except ImportError:
        return None
    if case not in options:
        return None
    loss = LigerFusedLinearCrossEntropyLoss(**options[case])
    return lambda x, weight, labels: loss(weight, x, labels)


def _ways(case: str, function: Callable, asked: list[str]) -> dict[str, Callable]:
    import torchweld

    ways = {
        "eager": lambda: function,
        "torch.compile": lambda: torch.compile(function),
        "torchweld": lambda: torchweld.fuse(function),
        "liger": lambda: _liger(case),
    }
    made = {name: ways[name]() for name in asked}
    return {name: way for name, way in made.items() if way is not None}


def _step(way: Callable, args: tuple, train: bool) -> Callable[[], object]:
    leaves = [a for a in args if a.requires_grad]

    def trained():
        for leaf in leaves:
            leaf.grad = None
        way(*args).backward()

    def inferred():
        with torch.no_grad():
            return way(*args)

    return trained if train else inferred


def measure(case: str, sizes: Sizes, asked) -> None:
    function, inputs = CASES[case]
    torch.manual_seed(0)
    args = inputs(sizes)
    torch._dynamo.reset()
    steps = {
        name: _step(way, args, not asked.inference)
        for name, way in _ways(case, function, asked.ways.split(",")).items()
    }
    for step in steps.values():
        step()
        step()
    times = time_paired(steps, sizes.device, asked.seconds)
    for name, step in steps.items():
        for leaf in args:
            leaf.grad = None
        peak = added_bytes(step, sizes.device)
        ratio = times.median_ms(name) / times.median_ms("torchweld") if "torchweld" in steps else 0
        print(f"{case:14} {name:14} {times.median_ms(name):9.2f} ms  {ratio:5.2f} of torchweld's  "
              f"+-{times.iqr_ms(name):.1f}  peak {bytes_text(peak)}", flush=True)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rows", type=int, default=2048)
    parser.add_argument("--depth", type=int, default=512)
    parser.add_argument("--classes", type=int, default=32000)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--only", default=",".join(CASES))
    parser.add_argument("--ways", default="eager,torch.compile,torchweld,liger")
    parser.add_argument("--seconds", type=float, default=20.0, help="timing, a case")
    parser.add_argument("--inference", action="store_true")
    asked = parser.parse_args()
    dtype = getattr(torch, asked.dtype)
    sizes = Sizes(asked.rows, asked.depth, asked.classes, dtype, asked.device)
    for case in asked.only.split(","):
        measure(case, sizes, asked)


if __name__ == "__main__":
    main()
