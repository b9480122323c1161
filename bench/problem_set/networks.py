"""Small whole networks."""

from __future__ import annotations

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import nn

from problem_set.core import net, problem_of

problem = problem_of("networks")


def chain(*layers: nn.Module) -> nn.Module:
    """A network of a class of its own that calls the layers in turn."""

    def forward(self, x):
        return self.layers(x)

    return net(forward, layers=nn.Sequential(*layers))


def mlp(*widths: int, last: nn.Module | None = None) -> nn.Sequential:
    """Linear layers with a relu behind each; `last` in place of the last relu."""
    layers = []
    for inputs, outputs in pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*(layers if last is None else [*layers[:-1], last]))


@problem
def lenet(scale):
    made = chain(
        nn.Conv2d(1, 6, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(256, 120), nn.ReLU(), nn.Linear(120, 84),
        nn.ReLU(), nn.Linear(84, 10),
    )  # fmt: skip
    return made, [torch.randn(64 * scale, 1, 28, 28)]


@problem
def alexnet_small(scale):
    made = chain(
        nn.Conv2d(3, 48, 11, stride=4, padding=2), nn.ReLU(), nn.LocalResponseNorm(5),
        nn.MaxPool2d(3, 2), nn.Conv2d(48, 128, 5, padding=2), nn.ReLU(), nn.MaxPool2d(3, 2),
        nn.Conv2d(128, 96, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(3), nn.Flatten(),
        nn.Dropout(), nn.Linear(864, 256), nn.ReLU(), nn.Linear(256, 100),
    )  # fmt: skip
    return made, [torch.randn(8 * scale, 3, 112, 112)]


@problem
def vgg_small(scale):
    layers, inputs = [], 3
    for width in (32, 64, 64):
        for _ in range(2):
            layers += [nn.Conv2d(inputs, width, 3, padding=1), nn.ReLU(inplace=True)]
            inputs = width
        layers.append(nn.MaxPool2d(2))
    head = nn.Flatten(), nn.Linear(64 * 16, 128), nn.ReLU(inplace=True), nn.Linear(128, 10)
    return chain(*layers, *head), [torch.randn(16 * scale, 3, 32, 32)]


@problem
def unet_small(scale):
    """Down once, up once, with what was skipped."""

    def twice(inputs, outputs):
        first = nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU()
        second = nn.Conv2d(outputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU()
        return nn.Sequential(*first, *second)

    def forward(self, x):
        fine = self.down(x)
        coarse = self.bottom(F.max_pool2d(fine, 2))
        return self.out(self.top(torch.cat([self.up(coarse), fine], 1)))

    parts = dict(down=twice(3, 16), bottom=twice(16, 32), top=twice(32, 16))
    made = net(forward, **parts, up=nn.ConvTranspose2d(32, 16, 2, 2), out=nn.Conv2d(16, 4, 1))
    return made, [torch.randn(4 * scale, 3, 64, 64)]


@problem
def pointnet(scale):
    def forward(self, x):
        return self.head(torch.max(self.layers(x), 2)[0])

    layers = []
    for inputs, outputs in ((3, 64), (64, 128), (128, 256)):
        layers += [nn.Conv1d(inputs, outputs, 1), nn.BatchNorm1d(outputs), nn.ReLU()]
    parts = dict(layers=nn.Sequential(*layers[:-1]), head=nn.Linear(256, 40))
    return net(forward, **parts), [torch.randn(8 * scale, 3, 1024)]


@problem
def autoencoder(scale):
    """Variational, with its loss; the noise is an input."""

    def forward(self, x, noise):
        hidden = F.relu(self.encode(x))
        mean, spread = self.mean(hidden), self.spread(hidden)
        again = self.decode(mean + noise * torch.exp(0.5 * spread))
        prior = 0.5 * torch.sum(1 + spread - mean.pow(2) - spread.exp())
        return F.binary_cross_entropy(again, x, reduction="sum") - prior

    parts = dict(encode=nn.Linear(784, 400), mean=nn.Linear(400, 20), spread=nn.Linear(400, 20))
    made = net(forward, **parts, decode=mlp(20, 400, 784, last=nn.Sigmoid()))
    return made, [torch.rand(128 * scale, 784), torch.randn(128 * scale, 20)]


@problem
def radiance_field(scale):
    """Of points: the sines and cosines of ten octaves, then linear layers."""

    def forward(self, x):
        octaves = 2.0 ** torch.arange(10, device=x.device)
        turned = (x[..., None, :] * octaves[:, None].to(x.dtype)).flatten(-2)
        return self.layers(torch.cat([x, turned.sin(), turned.cos()], -1))

    layers = mlp(63, 128, 128, 128, 128, 128, 4, last=nn.Identity())
    return net(forward, layers=layers), [torch.rand(8192 * scale, 3)]


@problem
def recommender(scale):
    """DLRM: bags of embeddings, products of all pairs."""

    def forward(self, dense, ids):
        x = self.bottom(dense)
        bags = [bag(ids[:, k]) for k, bag in enumerate(self.bags)]
        rows = torch.stack([x, *bags], 1)
        products = torch.bmm(rows, rows.transpose(1, 2))
        first, second = torch.tril_indices(9, 9, -1, device=x.device)
        return self.top(torch.cat([x, products[:, first, second]], 1))

    bags = nn.ModuleList(nn.EmbeddingBag(1000, 32, mode="sum") for _ in range(8))
    made = net(forward, bags=bags, bottom=mlp(13, 64, 32), top=mlp(68, 64, 1, last=nn.Sigmoid()))
    return made, [torch.randn(128 * scale, 13), torch.randint(0, 1000, (128 * scale, 8, 4))]
