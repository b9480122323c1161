"""Models for tests of archives: each has something that an archive must carry over."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import torchweld
from torchweld.exact.trees import as_arguments, map_tensors

RUN = Path(__file__).parent / "archive_run.py"


@dataclass(frozen=True)
class Case:
    """`others`: calls of other sizes. `small`: of sizes that torch.compile makes graphs of their
    own for. `options`: of export and fuse."""

    model: nn.Module
    inputs: Any
    dynamic: Any = None
    others: tuple = ()
    small: tuple = ()
    options: dict = field(default_factory=dict)


class Tied(nn.Module):
    """Embedding and head are one parameter; a buffer that is no part of the state_dict."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(50, 32)
        self.body = nn.Linear(32, 32)
        self.norm = nn.LayerNorm(32)
        self.head = nn.Linear(32, 50, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("scale", torch.rand(32), persistent=False)

    def forward(self, tokens):
        x = self.embed(tokens)
        x = self.norm(x + F.gelu(self.body(x)) * self.scale)
        return self.head(x)


class Structures(nn.Module):
    """Nested arguments, keywords, numbers; a dict with a tuple, None and a number as result."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 16), nn.Linear(8, 16)

    def forward(self, pair, *, extra=None, times=2, flags=None):
        x, (y,) = pair
        z = torch.tanh(self.a(x)) * torch.sigmoid(self.b(y)) * times
        if extra is not None:
            z = z + extra["bias"]
        return {"z": z, "parts": (z.sum(-1), None, [times, x]), "name": "structures"}


class Images(nn.Module):
    """Weights with channels last, batch statistics, a result with other strides."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 16, 3, padding=1)
        self.norm = nn.BatchNorm2d(16)
        self.to(memory_format=torch.channels_last)
        self.norm.running_mean.uniform_(-1, 1)

    def forward(self, x):
        return F.relu(self.norm(self.conv(x))).permute(0, 2, 3, 1)


class Counts(nn.Module):
    """Writes to a buffer in each call."""

    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(3))

    def forward(self, x):
        self.calls.add_(1)
        return torch.exp(-x.square()) + self.calls


class Draws(nn.Module):
    """Dropout in evaluation mode."""

    def forward(self, x):
        return F.dropout(x.sin(), 0.3, training=True)


class Divided(nn.Module):
    """Asks for a number of columns that is even."""

    def forward(self, x):
        left, right = x.view(x.shape[0], 2, x.shape[1] // 2).unbind(1)
        return F.silu(left) * right


def _mlp(dtype=torch.float32):
    layers = nn.Linear(64, 128), nn.GELU(), nn.LayerNorm(128), nn.Linear(128, 5)
    return nn.Sequential(*layers).to(dtype)


def _batches(*sizes, columns=64):
    return tuple((torch.randn(n, columns),) for n in sizes)


def cases() -> dict[str, Case]:
    """Each in evaluation mode, with random weights of the current seed."""
    images = torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last)
    pair = (torch.randn(4, 8), [torch.randn(4, 8)])
    made = {
        "mlp": Case(_mlp(), (torch.randn(7, 64),)),
        "bfloat16": Case(_mlp(torch.bfloat16), (torch.randn(7, 64, dtype=torch.bfloat16),)),
        "packed": Case(_mlp(), (torch.randn(7, 64),), options={"pack_weights": True}),
        "tied": Case(Tied(), (torch.randint(50, (2, 9)),)),
        "images": Case(Images(), (images,)),
        "structures": Case(Structures(), ((pair,), {"extra": {"bias": torch.ones(16)}})),
        "counts": Case(Counts(), (torch.randn(5, 3),)),
        "draws": Case(Draws(), (torch.randn(40, 30),)),
        "batch": Case(_mlp(), (torch.randn(7, 64),), {"input": {0: "batch"}},
                      _batches(2, 33), _batches(0, 1)),
        "tokens": Case(Tied(), (torch.randint(50, (2, 9)),), {"tokens": {0: "batch", 1: "length"}},
                       ((torch.randint(50, (5, 13)),),), ((torch.randint(50, (1, 1)),),)),
        "divided": Case(Divided(), (torch.randn(3, 8),), {"x": {0: "n", 1: "columns"}},
                        _batches(5, columns=14), _batches(1, columns=2)),
    }  # fmt: skip
    for case in made.values():
        case.model.eval()
    return made


def on_gpu(case: Case) -> Case:
    def moved(value):
        return map_tensors(lambda t: t.cuda(), value)

    return replace(case, model=case.model.cuda(), inputs=moved(case.inputs),
                   others=moved(case.others), small=moved(case.small))


def exported(chosen: dict[str, Case], folder: Path, repeat: int = 1) -> Path:
    """Each as an archive in `folder`, with calls, and the fused model's results in this process."""
    torch.manual_seed(0)
    for name, case in chosen.items():
        path = folder / f"{name}.tw"
        torchweld.export(case.model, case.inputs, path, dynamic=case.dynamic, **case.options)
        torch.save(list(_calls(case, path, repeat)), path.with_suffix(".calls"))
    return folder


def _calls(case: Case, archive: Path, repeat: int) -> Iterator[tuple]:
    """(args, kwargs, what the fused model gives) of each call, `repeat` times; for small sizes what
    the archive gives in this process."""
    args, kwargs = as_arguments(case.inputs)
    dynamic = {"dynamic": True} if case.dynamic else {}
    fused = torchweld.fuse(case.model, None if dynamic else (args, kwargs),
                           **dynamic, **case.options)
    loaded = torchweld.load(archive)
    calls = [(fused, args, kwargs), *((fused, args, {}) for args in case.others)]
    calls += [(loaded, args, {}) for args in case.small]
    for model, args, kwargs in calls * repeat:
        torch.manual_seed(1)
        with torch.no_grad():
            yield args, kwargs, model(*args, **kwargs)


def run_elsewhere(folder: Path, cache: Path) -> dict[str, str]:
    """name -> "same" or "different", told by a process without a compiler, Dynamo, Triton or a
    cache."""
    environment = {k: v for k, v in os.environ.items() if k != "CXX"} | {
        "PATH": "", "TORCHWELD_CACHE_DIR": str(cache)}
    done = subprocess.run([sys.executable, str(RUN), str(folder)], env=environment, check=False,
                          capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return dict(line.split() for line in done.stdout.splitlines())
