"""Convolutions in 16 bits with what follows them, and small networks of them, on a GPU: what their
kernels take of a call in a trace, and (networks) how long calls take one after the other.

    python bench/convolutions.py [--only "3x3,colours,unet"] [--dtype bfloat16]

Each case: cuDNN's convolution alone, torch.compile (networks: in its mode reduce-overhead too) and
torchweld, in inference. Images have their channels innermost, but those of networks, whose layout
is the compiler's. Rows, transposed and depthwise ones ("row", "transposed", "depthwise", alone and
"between" two of 1 x 1) are given in eager's layout; "eager" is what its kernels take of all.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import nn

import torchweld
from attention import kernels_us
from torchweld.observe.measure.paired import time_paired

# batch, channels, sides, results, window, step
LAYERS = {
    "3x3 64": (64, 64, 56, 64, 3, 1),
    "3x3 128": (64, 128, 28, 128, 3, 1),
    "3x3 256": (64, 256, 14, 256, 3, 1),
    "3x3 512": (64, 512, 7, 512, 3, 1),
    "3x3 128, step 2": (64, 128, 56, 128, 3, 2),
    "3x3 256, step 2": (64, 256, 28, 256, 3, 2),
    "3x3 320": (8, 320, 64, 320, 3, 1),
    "3x3 640": (8, 640, 32, 640, 3, 1),
    "3x3 1280": (8, 1280, 16, 1280, 3, 1),
    "3x3 512, large": (2, 512, 128, 512, 3, 1),
    "5x5 64": (16, 64, 64, 64, 5, 1),
    "7x7 colours, step 2": (64, 3, 224, 64, 7, 2),
    "3x3 colours": (32, 3, 224, 64, 3, 1),
    "11x11 colours, step 4": (64, 3, 224, 96, 11, 4),
    "3x3 8": (32, 8, 128, 64, 3, 1),
}


# a convolution, the image's shape
OTHERS = {
    "row 5": (lambda: nn.Conv1d(256, 256, 5, padding=2), (16, 256, 4096)),
    "row 3, dilated": (lambda: nn.Conv1d(128, 128, 3, padding=4, dilation=4), (16, 128, 4096)),
    "row 3, step 2, odd": (lambda: nn.Conv1d(512, 512, 3, 2), (16, 512, 3199)),
    "row 3, groups": (lambda: nn.Conv1d(256, 256, 3, padding=1, groups=4), (16, 256, 4096)),
    "row 5, 80": (lambda: nn.Conv1d(80, 256, 5, padding=2), (16, 80, 1500)),
    "row 1": (lambda: nn.Conv1d(64, 256, 1), (16, 64, 4096)),
    "transposed row 4": (lambda: nn.ConvTranspose1d(128, 64, 4, 2, 1), (16, 128, 4096)),
    "transposed 4": (lambda: nn.ConvTranspose2d(64, 128, 4, 2, 1), (16, 64, 56, 56)),
    "transposed 4, groups": (
        lambda: nn.ConvTranspose2d(64, 128, 4, 2, 1, groups=4), (16, 64, 56, 56)),
    "transposed 2": (lambda: nn.ConvTranspose2d(64, 32, 2, 2), (16, 64, 56, 56)),
    "transposed 3": (lambda: nn.ConvTranspose2d(128, 128, 3, 2, 1, 1), (16, 128, 28, 28)),
    "transposed 4, depthwise": (
        lambda: nn.ConvTranspose2d(64, 64, 4, 2, 1, groups=64), (16, 64, 56, 56)),
    "transposed volume 3": (lambda: nn.ConvTranspose3d(32, 16, 3, 2), (8, 32, 12, 24, 24)),
    "depthwise volume 3": (
        lambda: nn.Conv3d(64, 64, 3, padding=1, groups=64), (8, 64, 16, 32, 32)),
    "depthwise volume 5": (
        lambda: nn.Conv3d(64, 64, 5, padding=2, groups=64), (8, 64, 16, 32, 32)),
    "volume 3x5x7": (lambda: nn.Conv3d(32, 64, (3, 5, 7), padding=(1, 2, 3)), (8, 32, 16, 32, 32)),
}  # fmt: skip


class Other(nn.Module):
    """A convolution and ReLU; `between` two of 1 x 1, with ReLU."""

    def __init__(self, convolution: nn.Module, between: bool) -> None:
        super().__init__()
        pixels = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[convolution.weight.dim() - 3]
        given, made = convolution.in_channels, convolution.out_channels
        around = (pixels(n, n, 1) if between else nn.Identity() for n in (given, made))
        self.first, self.last = around
        self.convolution = convolution

    def forward(self, x):
        return self.last(F.relu(self.convolution(F.relu(self.first(x)))))


class Layer(nn.Module):
    """A convolution, BatchNorm, a residual where it fits, ReLU."""

    def __init__(self, channels: int, results: int, window: int, step: int) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(channels, results, window, step, window // 2, bias=False)
        self.norm = nn.BatchNorm2d(results)

    def forward(self, x):
        y = self.norm(self.convolution(x))
        return F.relu(y + x if y.shape == x.shape else y)


class Residual(nn.Module):
    """Of a diffusion model's network: GroupNorm, SiLU, convolution, twice; a step's embedding."""

    def __init__(self, channels: int, results: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.GroupNorm(32, n) for n in (channels, results))
        self.first = nn.Conv2d(channels, results, 3, padding=1)
        self.second = nn.Conv2d(results, results, 3, padding=1)
        self.step = nn.Linear(256, results)
        same = channels == results
        self.around = nn.Identity() if same else nn.Conv2d(channels, results, 1)

    def forward(self, x, t):
        y = self.first(F.silu(self.norms[0](x))) + self.step(F.silu(t))[:, :, None, None]
        return self.second(F.silu(self.norms[1](y))) + self.around(x)


class UNet(nn.Module):
    def __init__(self, c: int = 128) -> None:
        super().__init__()
        self.first = nn.Conv2d(4, c, 3, padding=1)
        self.down = nn.ModuleList([Residual(c, c), Residual(c, 2 * c)])
        self.halved = nn.ModuleList(nn.Conv2d(n, n, 3, 2, 1) for n in (c, 2 * c))
        self.inner = Residual(2 * c, 2 * c)
        self.up = nn.ModuleList([Residual(4 * c, 2 * c), Residual(3 * c, c)])
        self.norm, self.last = nn.GroupNorm(32, c), nn.Conv2d(c, 4, 3, padding=1)

    def forward(self, x, t):
        x, kept = self.first(x), []
        for block, halved in zip(self.down, self.halved):
            kept.append(block(x, t))
            x = halved(kept[-1])
        x = self.inner(x, t)
        for block in self.up:
            x = torch.cat([F.interpolate(x, scale_factor=2.0), kept.pop()], 1)
            x = block(x, t)
        return self.last(F.silu(self.norm(x)))


def vgg16() -> nn.Module:
    layers: list[nn.Module] = []
    given = 3
    for stage, made in enumerate((64, 128, 256, 512, 512)):
        for _ in range(2 if stage < 2 else 3):
            layers += [nn.Conv2d(given, made, 3, padding=1), nn.ReLU()]
            given = made
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(512 * 49, 1000))


NETWORKS = {
    "unet": (UNet, [(8, 4, 64, 64), (8, 256)]),
    "vgg16": (vgg16, [(32, 3, 224, 224)]),
}


def layer_line(name: str, dtype: torch.dtype) -> str:
    batch, channels, side, results, window, step = LAYERS[name]
    how = dict(memory_format=torch.channels_last)
    model = Layer(channels, results, window, step).cuda().to(dtype).eval().to(**how)
    x = torch.randn(batch, channels, side, side, device="cuda", dtype=dtype).to(**how)
    ways = {"cuDNN alone": model.convolution, "inductor": torch.compile(model),
            "torchweld": torchweld.fuse(model)}  # fmt: skip
    times = {way: kernels_us(lambda f=f: f(x)) for way, f in ways.items()}
    told = " | ".join(f"{us:.1f}" for us in times.values())
    return f"| {name} | {told} | {times['inductor'] / times['torchweld']:.2f} |"


def other_line(name: str, between: bool, dtype: torch.dtype) -> str:
    make, shape = OTHERS[name]
    model = Other(make(), between).cuda().to(dtype).eval()
    x = torch.randn(shape, device="cuda", dtype=dtype)
    ways = {"eager": model, "inductor": torch.compile(model), "torchweld": torchweld.fuse(model)}
    times = {way: kernels_us(lambda f=f: f(x)) for way, f in ways.items()}
    told = " | ".join(f"{us:.1f}" for us in times.values())
    best = min(us for way, us in times.items() if way != "torchweld")
    where = ", between" if between else ""
    return f"| {name}{where} (eager) | {told} | {best / times['torchweld']:.2f} |"


def network_line(name: str, dtype: torch.dtype) -> str:
    make, shapes = NETWORKS[name]
    model = make().cuda().to(dtype).eval()
    inputs = [torch.randn(s, device="cuda", dtype=dtype) for s in shapes]
    ways = {"eager": model, "inductor": torch.compile(model),
            "reduce-overhead": torch.compile(model, mode="reduce-overhead"),
            "torchweld": torchweld.fuse(model)}  # fmt: skip
    calls = {way: lambda f=f: f(*inputs) for way, f in ways.items()}
    kernels = {way: kernels_us(calls[way]) for way in ("inductor", "torchweld")}
    paired = time_paired(calls, "cuda", seconds=2)
    wall = {way: paired.median_ms(way) for way in calls}
    told = "; ".join(f"{way} {ms:.2f} ms" for way, ms in wall.items())
    best = min(ms for way, ms in wall.items() if way != "torchweld")
    return (f"{name}: {told}; {best / wall['torchweld']:.2f}x; kernels: inductor "
            f"{kernels['inductor']:.0f} us, torchweld {kernels['torchweld']:.0f} us")  # fmt: skip


def lines(wanted: Callable[[str], bool], dtype: torch.dtype) -> Iterator[str]:
    for name in filter(wanted, LAYERS):
        torch._dynamo.reset()
        yield layer_line(name, dtype)
    for between in (False, True):
        for name in filter(wanted, OTHERS):
            torch._dynamo.reset()
            yield other_line(name, between, dtype)
    for name in filter(wanted, NETWORKS):
        torch._dynamo.reset()
        yield network_line(name, dtype)


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="parts of names, separated by commas")
    parser.add_argument("--dtype", default="bfloat16")
    args = parser.parse_args()
    parts = args.only.split(",")
    print(f"torch {torch.__version__}, {torch.cuda.get_device_name()}, {args.dtype}")
    print("| case | cuDNN alone, us | inductor, us | torchweld, us | inductor / torchweld |")
    for line in lines(lambda name: any(p in name for p in parts), getattr(torch, args.dtype)):
        print(line, flush=True)


if __name__ == "__main__":
    main()
