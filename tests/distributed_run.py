"""Every way of training on two processes, eager and fused, over gloo: one process of the two."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

import torchweld

RANKS, STEPS, WIDTH = 2, 3, 16


class Block(nn.Module):
    """A normalised, gated MLP with a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.gate, self.up = nn.Linear(WIDTH, 32), nn.Linear(WIDTH, 32)
        self.down = nn.Linear(32, WIDTH)

    def forward(self, x):
        y = self.norm(x)
        return x + self.down(nn.functional.gelu(self.gate(y)) * self.up(y))


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(Block(), Block())


def sharded(found: nn.Module) -> nn.Module:
    for block in found:
        fully_shard(block)
    fully_shard(found)
    return found


def split(found: nn.Module) -> nn.Module:
    """Tensor parallel: the wide dimension of each block is on two processes."""
    mesh = init_device_mesh("cpu", (RANKS,))
    plan = {"gate": ColwiseParallel(), "up": ColwiseParallel(), "down": RowwiseParallel()}
    for block in found:
        parallelize_module(block, mesh, plan)
    return found


def shard_of_fused(fuse) -> nn.Module:
    """Blocks are fused one by one, and then sharded."""
    found = nn.Sequential(*(fuse(block) for block in model()))
    return sharded(found)


def same(module: nn.Module) -> nn.Module:
    return module


# name -> a function of `fuse` (or `same`) that gives the model
VARIANTS: dict[str, Callable] = {
    "DDP of a fused model": lambda fuse: DistributedDataParallel(fuse(model())),
    "a fused DDP model": lambda fuse: fuse(DistributedDataParallel(model())),
    "FSDP2 of fused blocks": shard_of_fused,
    "a fused FSDP2 model": lambda fuse: fuse(sharded(model())),
    "fused tensor parallel": lambda fuse: fuse(split(model())),
}


def losses(module: nn.Module, rank: int, whole_batch: bool) -> list[float]:
    """Of a few steps of Adam, the mean over the processes."""
    optimiser = torch.optim.Adam(module.parameters(), lr=0.01, foreach=False)
    found = []
    for step in range(STEPS):
        generator = torch.Generator().manual_seed(step if whole_batch else 100 * rank + step)
        x = torch.randn(4, WIDTH, generator=generator)
        loss = (module(x) - x.sin()).square().mean()
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        found.append(mean.item() / RANKS)
    return found


def measured(make: Callable, rank: int, whole_batch: bool) -> dict:
    parts = []

    def fuse(module: nn.Module) -> nn.Module:
        parts.append(torchweld.fuse(module))
        return parts[-1]

    eager = losses(make(same), rank, whole_batch)
    fused = losses(make(fuse), rank, whole_batch)
    graphs = [record for part in parts for record in torchweld.records(part)]
    kinds = sorted({record.kind for record in graphs})
    return {"eager": eager, "fused": fused, "kinds": kinds, "graphs": len(graphs)}


def train(tell: Callable, rank: int, folder: Path) -> None:
    """Tells by variant the losses of eager and of the fused model, and what torchweld compiled.
    Both processes meet in `folder`."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder / 'meet'}", rank=rank,
                            world_size=RANKS)  # fmt: skip
    found = {}
    for name, make in VARIANTS.items():
        torch._dynamo.reset()
        found[name] = measured(make, rank, whole_batch="tensor parallel" in name)
    dist.destroy_process_group()
    tell(found)
