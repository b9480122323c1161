"""Float32 convolutions by kernels of our own: as exact as eager, with what follows them."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import torchweld
from pairs import pairs
from torchweld import pipeline
from torchweld.exact.verify import verify
from torchweld.ir.nodes import Comp, Extern
from torchweld.targets.find import target_of
from torchweld.targets.rates import favouring_convolutions

CALL = "aten.convolution.default"


pytestmark = pytest.mark.filterwarnings("error::torchweld.core.events.TorchweldWarning")


@pytest.fixture(autouse=True)
def _on_any_machine(monkeypatch):
    """They are right without masked loads too, and where they do not pay."""
    torch._dynamo.reset()  # sizes that differ between tests are no symbols
    _with_rates(monkeypatch, favouring_convolutions("own"))


def _with_rates(monkeypatch, rates) -> None:
    cpu = target_of("cpu")
    target = replace(cpu, features=("avx2", "avx512"), rates={**cpu.rates, **rates})
    monkeypatch.setattr(pipeline, "target_of", lambda device: target)


def _nodes(fused) -> list:
    return [n for r in torchweld.api.records(fused) for n in r.graph.nodes]


def _calls(fused) -> list[Extern]:
    return [n for n in _nodes(fused) if isinstance(n, Extern) and n.target == CALL]


def _check(model: nn.Module, x: torch.Tensor, train: bool = False, own: bool = True):
    """Within the contract, laid out as eager's, and by our kernels if they should be."""
    fused = torchweld.fuse(model)
    report = verify(model, fused, x, train=train)
    assert report.ok, str(report)
    with torch.no_grad():
        expected, got = model(x), fused(x)
    assert got.stride() == expected.stride()
    assert (not _calls(fused)) == own
    return fused


@pytest.mark.parametrize(
    "batch, shape, channels, how",
    [
        (2, (3, 37, 41), 16, dict(kernel_size=3, padding=1)),
        (3, (17, 7, 7), 19, dict(kernel_size=3, padding=1)),
        (1, (5, 31, 23), 9, dict(kernel_size=(5, 1), padding=(2, 0), bias=False)),
        (2, (40, 13, 11), 33, dict(kernel_size=1)),
        (4, (300, 5, 3), 24, dict(kernel_size=1, bias=False)),
        (2, (6, 45, 52), 31, dict(kernel_size=3, stride=2, padding=1)),
        (1, (3, 65, 63), 12, dict(kernel_size=7, stride=2, padding=3)),
        (1, (8, 60, 61), 17, dict(kernel_size=3, stride=(3, 4), padding=2)),
        (1, (16, 33, 29), 10, dict(kernel_size=3, dilation=(2, 3), padding=(2, 3))),
        (1, (9, 40, 5), 8, dict(kernel_size=(3, 5), padding=(4, 4))),
        (1, (700, 9, 9), 8, dict(kernel_size=9)),
        (5, (64, 16, 16), 50, dict(kernel_size=1, stride=2)),
        (1, (2, 30, 31), 20, dict(kernel_size=13, padding=6)),
        (2, (37, 23, 21), 37, dict(kernel_size=3, padding=1, groups=37)),
        (1, (64, 30, 31), 64, dict(kernel_size=5, padding=2, stride=2, groups=64, bias=False)),
        (3, (40, 19, 17), 40, dict(kernel_size=(1, 3), dilation=3, stride=(1, 3), groups=40)),
        (1, (19, 70, 130), 19, dict(kernel_size=7, padding=3, groups=19)),
        (1, (16, 3, 3200), 16, dict(kernel_size=3, padding=1, stride=2, groups=16)),
        (2, (5, 61, 97), 4, dict(kernel_size=3, padding=1)),
        (3, (27, 30, 130), 11, dict(kernel_size=(3, 5), padding=(2, 0), dilation=(2, 3))),
        (1, (150, 40, 200), 17, dict(kernel_size=3, bias=False)),
        (2, (4, 50, 90), 9, dict(kernel_size=(1, 13), padding=(0, 6))),
    ],
)
def test_geometries(batch, shape, channels, how):
    torch.manual_seed(0)
    model = nn.Conv2d(shape[0], channels, **how).eval()
    fused = _check(model, torch.randn(batch, *shape))
    assert [type(n) for n in _nodes(fused)] == [Comp]


@pytest.mark.parametrize(
    "batch, shape, channels, how",
    [
        (2, (6, 130), 12, dict(kernel_size=3, padding=1)),
        (3, (80, 61), 31, dict(kernel_size=5, stride=2)),
        (1, (1, 1603), 16, dict(kernel_size=10, stride=5, bias=False)),
        (4, (40, 49), 24, dict(kernel_size=1)),
        (2, (24, 97), 24, dict(kernel_size=31, padding=15, groups=24)),
        (2, (9, 50), 1, dict(kernel_size=3, padding=4, dilation=4)),
        (1, (32, 40), 32, dict(kernel_size=128, padding=64, groups=4)),
        (2, (3, 7, 11, 13), 9, dict(kernel_size=3, padding=1)),
        (1, (5, 9, 8, 17), 16, dict(kernel_size=(1, 3, 2), stride=(2, 1, 3), padding=(0, 1, 1))),
        (3, (4, 6, 5, 5), 8, dict(kernel_size=2, dilation=(3, 1, 2), bias=False)),
        (2, (8, 4, 6, 7), 12, dict(kernel_size=3, padding=1, groups=2)),
        (1, (17, 3, 4, 6), 20, dict(kernel_size=1)),
        (2, (6, 4, 6, 7), 6, dict(kernel_size=3, padding=1, groups=6)),
        (2, (4, 17, 29, 30), 3, dict(kernel_size=3, padding=1)),
        (2, (20, 3001), 40, dict(kernel_size=3, padding=2, dilation=2)),
    ],
)
def test_other_ranks(batch, shape, channels, how):
    torch.manual_seed(0)
    make = {2: nn.Conv1d, 4: nn.Conv3d}[len(shape)]
    fused = _check(make(shape[0], channels, **how).eval(), torch.randn(batch, *shape))
    assert [type(n) for n in _nodes(fused)] == [Comp]


@pytest.mark.parametrize(
    "batch, shape, channels, how",
    [
        (2, (16, 23, 21), 24, dict(kernel_size=3, padding=1, groups=2)),
        (1, (64, 19, 20), 32, dict(kernel_size=3, stride=2, groups=32)),
        (3, (12, 13, 11), 36, dict(kernel_size=1, groups=4, bias=False)),
        (1, (7, 30, 9), 21, dict(kernel_size=(1, 5), groups=7)),
        (1, (9, 31, 17), 27, dict(kernel_size=2, stride=3, groups=3)),
        (2, (20, 12, 12), 5, dict(kernel_size=3, groups=5, padding=1)),
        (1, (30, 40, 40), 1, dict(kernel_size=3)),
        (2, (3, 37, 71), 3, dict(kernel_size=(11, 1), groups=3, bias=False)),
        (2, (3, 37, 71), 3, dict(kernel_size=(1, 11), padding=(0, 5), groups=3)),
        (2, (4, 33, 67), 4, dict(kernel_size=5, padding=2, dilation=2, groups=4)),
        (3, (1, 50, 66), 2, dict(kernel_size=3, padding=1)),
    ],
)
def test_groups_and_few_channels(batch, shape, channels, how):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(shape[0], channels, **how), nn.BatchNorm2d(channels)).eval()
    fused = _check(model, torch.randn(batch, *shape))
    assert [type(n) for n in _nodes(fused)] == [Comp]


@pytest.mark.parametrize(
    "batch, shape, channels, how",
    [
        (2, (8, 13, 11), 12, dict(kernel_size=2, stride=2)),
        (1, (17, 28, 28), 20, dict(kernel_size=4, stride=2, padding=1)),
        (3, (9, 7, 20), 7, dict(kernel_size=3, stride=2, padding=1, output_padding=1)),
        (1, (6, 5, 60), 8, dict(kernel_size=3, padding=1)),
        (2, (5, 9, 8), 3, dict(kernel_size=(5, 2), stride=(3, 4), dilation=(2, 3), padding=(3, 0))),
        (1, (24, 10, 9), 16, dict(kernel_size=1, bias=False)),
        (2, (12, 10, 9), 18, dict(kernel_size=3, stride=2, groups=3)),
        (2, (6, 10, 9), 6, dict(kernel_size=4, stride=2, padding=1, groups=6)),
        (1, (4, 6, 6), 260, dict(kernel_size=(1, 3), stride=(1, 2), output_padding=(0, 1))),
        (2, (10, 33), 9, dict(kernel_size=16, stride=8, padding=4)),
        (2, (7, 4, 5, 6), 8, dict(kernel_size=3, stride=2, padding=1, output_padding=1)),
        (1, (6, 3, 7, 5), 10, dict(kernel_size=(3, 5, 5), stride=(2, 2, 2), padding=(1, 2, 2))),
        (2, (5, 31, 43), 6, dict(kernel_size=3, stride=2, padding=1, output_padding=1)),
        (1, (23, 40, 43), 27, dict(kernel_size=3, stride=(1, 3), padding=(2, 1))),
        (3, (7, 36, 35), 9, dict(kernel_size=(2, 1), stride=(3, 1), padding=(0, 1))),
        (1, (14, 21, 27), 28, dict(kernel_size=(4, 3), stride=(4, 5), dilation=3, padding=(1, 3))),
        (1, (30, 40, 50), 9, dict(kernel_size=(4, 5), stride=(2, 3), padding=(1, 0), groups=3)),
        (2, (7, 30, 60), 3, dict(kernel_size=5, dilation=(1, 2), padding=1)),
        (1, (4, 9, 20, 21), 2, dict(kernel_size=4, stride=(1, 2, 3), padding=(0, 1, 2))),
    ],
)
def test_transposed(batch, shape, channels, how):
    torch.manual_seed(0)
    make = {2: nn.ConvTranspose1d, 3: nn.ConvTranspose2d, 4: nn.ConvTranspose3d}[len(shape)]
    model = nn.Sequential(make(shape[0], channels, **how), nn.Hardswish()).eval()
    fused = _check(model, torch.randn(batch, *shape))
    assert [type(n) for n in _nodes(fused)] == [Comp]


@pytest.mark.parametrize("how", [dict(padding=(1,)), dict(stride=(2,)), dict(dilation=[2])])
@pytest.mark.parametrize("call", [F.conv2d, F.conv_transpose2d])
def test_one_number_for_all_sides(call, how):
    x, w = torch.randn(2, 6, 9, 10), torch.randn(6, 6, 3, 3)
    fused = torchweld.fuse(lambda x, w: call(x, w, **how).tanh())
    torch.testing.assert_close(fused(x, w), call(x, w, **how).tanh())
    assert [type(n) for n in _nodes(fused)] == [Comp]


def _random_convolution(draw: random.Random) -> tuple[nn.Module, torch.Tensor]:
    """Of any rank, in groups, with strides and gaps, transposed or not."""
    rank, groups, transposed = draw.randint(1, 3), draw.choice([1, 1, 2, 3]), draw.random() < 0.5
    longest = (400, 45, 14)[rank - 1]
    sizes = [draw.randint(6, longest) for _ in range(rank)]
    how = dict(kernel_size=[draw.randint(1, 5) for _ in sizes], groups=groups)
    how |= dict(stride=[draw.choice([1, 1, 2, 3, 5]) for _ in sizes])
    how |= dict(padding=[draw.randint(0, k // 2) for k in how["kernel_size"]])
    channels, results = (groups * draw.randint(1, 12) for _ in range(2))
    if transposed:
        how |= dict(output_padding=[draw.randint(0, n - 1) for n in how["stride"]])
    name = f"Conv{'Transpose' if transposed else ''}{rank}d"
    model = getattr(nn, name)(channels, results, **how).eval()
    return model, torch.randn(draw.randint(1, 3), channels, *sizes)


@pytest.mark.parametrize("seed", range(24))
def test_random_geometries(seed):
    torch.manual_seed(seed)
    model, x = _random_convolution(random.Random(seed))
    fused = torchweld.fuse(model, (x,))
    with torch.no_grad():
        torch.testing.assert_close(fused(x), model(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "make, how",
    [
        (nn.Conv2d, dict(kernel_size=(2, 100))),
        (nn.Conv2d, dict(kernel_size=5, padding=2)),
        (nn.Conv2d, dict(kernel_size=3, stride=2, groups=2)),
        (nn.ConvTranspose2d, dict(kernel_size=(1, 9), stride=(1, 9))),
        (nn.Conv2d, dict(kernel_size=4, stride=4)),
    ],
    ids=["a long window", "a wide window", "groups of whole vectors", "long steps", "patches"],
)
def test_others_are_calls(monkeypatch, make, how):
    _with_rates(monkeypatch, favouring_convolutions("aten"))
    _check(make(32, 32, **how).eval(), torch.randn(1, 32, 40, 140), own=False)


def test_a_long_sum_is_as_exact_as_eager():
    """One chain of additions would have 4 times eager's error."""
    torch.manual_seed(0)
    model = nn.Conv2d(512, 32, 3, padding=1, bias=False).eval()
    _check(model, torch.rand(1, 512, 9, 9))


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Conv2d(16, 24, 3, padding=1), nn.Conv2d(24, 16, 1, bias=False)
        self.norm_up, self.norm_down = nn.BatchNorm2d(24), nn.BatchNorm2d(16)

    def forward(self, x):
        y = self.norm_down(self.down(F.relu(self.norm_up(self.up(x)))))
        return F.relu(x + y)


class Twins(nn.Module):
    """Two convolutions meet; one result is read twice, a vector along pixels and one along batch
    and channels join."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(8, 32, 3, padding=1), nn.Conv2d(8, 32, 1)
        self.place = nn.Parameter(torch.randn(1, 1, 25, 27))

    def forward(self, x):
        a, b = self.one(x), self.two(x)
        scale = x.mean((2, 3), keepdim=True).repeat(1, 4, 1, 1)
        return a * torch.sigmoid(a) + b * self.place + scale


class Seen(nn.Module):
    """The sums are returned, and read by a reduction and by a kernel over other axes."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Conv2d(8, 32, 3)
        self.two = nn.Conv2d(32, 16, 3)
        self.three = nn.Conv2d(16, 16, 1)

    def forward(self, x):
        a = self.one(x)
        b = self.three(self.two(a))
        return torch.cat([a.flatten(1), b.softmax(1).flatten(1), b.flatten(2).mT.flatten(1)], 1)


class Grouped(nn.Module):
    """A norm over groups of channels and a concatenation leave images in other shapes."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.norm = nn.Conv2d(8, 16, 3, padding=1), nn.GroupNorm(4, 16)
        self.two, self.three = nn.Conv2d(16, 16, 3, padding=1), nn.Conv2d(32, 8, 1)

    def forward(self, x):
        y = F.silu(self.norm(self.one(x)))
        return self.three(torch.cat([self.two(y), y], 1)).relu()


@pytest.mark.parametrize(
    ("make", "train", "batch"), pairs((Residual, Twins, Seen, Grouped), (False, True), (1, 3))
)
def test_what_follows(make, train, batch):
    torch.manual_seed(0)
    channels = 16 if make is Residual else 8
    _check(make().train(train), torch.randn(batch, channels, 25, 27), train=train)


@pytest.mark.parametrize("batch", [1, 2])
def test_what_follows_is_in_the_kernel(batch):
    fused = _check(Residual().eval(), torch.randn(batch, 16, 25, 27))
    assert [type(n) for n in _nodes(fused)] == [Comp, Comp]


def test_a_pooling_does_not_repeat_what_is_before_it():
    """Nor does it keep it out of the convolution's kernel."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(3, 2, 1)
    )
    fused = _check(model.eval(), torch.randn(8, 3, 96, 96))
    assert [len(n.origins) for n in _nodes(fused)] == [3, 1]


@pytest.mark.parametrize(
    "how",
    [
        dict(kernel_size=3, stride=2, padding=1),
        dict(kernel_size=2),
        dict(kernel_size=(3, 2), stride=(1, 3), dilation=(2, 1), padding=(1, 0)),
        dict(kernel_size=3, stride=1, padding=1),
    ],
)
@pytest.mark.parametrize("shape", [(2, 5, 37, 35), (1, 3, 7, 6), (4, 33, 32)])
def test_max_pooling(how, shape):
    torch.manual_seed(0)
    model, x = nn.MaxPool2d(**how).eval(), torch.randn(shape)
    x.view(-1)[5], x.view(-1)[100] = float("nan"), -float("inf")
    fused = torchweld.fuse(model)
    with torch.no_grad():
        torch.testing.assert_close(fused(x), model(x), rtol=0, atol=0, equal_nan=True)
    (record,) = torchweld.api.records(fused)
    (text,) = [s.text for b in record.bundles.values() for s in b.sources]
    assert "tw_pool(a" in text


def test_max_pooling_of_a_part():
    """Some of the channels, and of the rows."""
    torch.manual_seed(0)
    x = torch.randn(2, 6, 20, 22)
    for part in (lambda x: x[:, 1:4], lambda x: x[:, :4], lambda x: x[1:, :, 3:], lambda x: x.mT):
        torch._dynamo.reset()

        def pooled(x, part=part):
            return F.max_pool2d(part(x + 1), 3, 2, 1)

        torch.testing.assert_close(torchweld.fuse(pooled)(x), pooled(x), rtol=0, atol=0)


def test_channels_last_images_are_calls():
    torch.manual_seed(0)
    model = Residual().eval().to(memory_format=torch.channels_last)
    x = torch.randn(2, 16, 25, 27).to(memory_format=torch.channels_last)
    _check(model, x, own=False)


def test_other_sizes():
    torch.manual_seed(0)
    model = Residual().eval()
    fused = torchweld.fuse(model)
    with torch.no_grad():
        for batch, height in ((2, 25), (3, 25), (5, 25), (1, 25), (2, 31), (3, 17)):
            x = torch.randn(batch, 16, height, height + 2)
            torch.testing.assert_close(fused(x), model(x), rtol=1e-4, atol=1e-5)
    assert not _calls(fused)


MODELS = {
    "gathered": Residual,
    "strips": lambda: nn.Conv2d(16, 8, 3, padding=1),
    "transposed": lambda: nn.ConvTranspose2d(16, 8, 3, 2),
}


@pytest.mark.parametrize("name", MODELS)
def test_the_number_of_threads_changes_nothing(name):
    torch.manual_seed(0)
    model, x = MODELS[name]().eval(), torch.randn(2, 16, 25, 27)
    before, results = torch.get_num_threads(), []
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            with torch.no_grad():
                results.append(torchweld.fuse(model)(x))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(*results)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("sides", [(29, 31), (40, 7), (9, 50)])
def test_rows_and_images_that_are_put_together_for_what_follows(transposed, sides):
    """Small images, of which a batch of panels has several; a residual has places of its own."""
    torch.manual_seed(0)
    kind = nn.ConvTranspose2d if transposed else nn.Conv2d
    layer = kind(3, 13, 3, padding=1).eval()
    x, r = torch.randn(7, 3, *sides), torch.randn(7, 13, *sides)
    fused = torchweld.fuse(lambda x, r: F.leaky_relu(layer(x) / 2, 0.01) + r)
    with torch.no_grad():
        expected = F.leaky_relu(layer.double()(x.double()) / 2, 0.01) + r
        layer.float()
        torch.testing.assert_close(fused(x, r).double(), expected, rtol=1e-5, atol=1e-5)
    (record,) = torchweld.records(fused)
    assert [type(n) for n in record.graph.nodes] == [Comp]


def test_special_values_stay_in_their_windows():
    torch.manual_seed(0)
    model, x = nn.Conv2d(8, 16, 3, padding=1).eval(), torch.randn(2, 8, 25, 27)
    x[0, 3, 0, 0], x[1, 2, 24, 26], x[1, 0, 12, 0] = float("nan"), float("inf"), -float("inf")
    fused = torchweld.fuse(model)
    with torch.no_grad():
        expected, got = model(x), fused(x)
    assert torch.equal(got.isnan(), expected.isnan())
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5, equal_nan=True)


def test_weights_may_change():
    torch.manual_seed(0)
    model, x = Residual().eval(), torch.randn(1, 16, 25, 27)
    fused = torchweld.fuse(model)
    with torch.no_grad():
        fused(x)
        model.up.weight.mul_(2), model.norm_up.running_var.add_(1)
        torch.testing.assert_close(fused(x), model(x), rtol=1e-4, atol=1e-5)


class KernelOfEachImage(nn.Module):
    """Modulated convolutions: images are groups, and operands views of what is computed."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.scale = nn.Parameter(torch.randn(12, 9, 3, 3)), nn.Linear(5, 9)

    def forward(self, x, style):
        images, channels, *sides = x.shape
        weight = self.weight * self.scale(style)[:, None, :, None, None]
        weight = weight.reshape(images * 12, channels, 3, 3)
        bias = (style[:, :1] * torch.arange(12.0)).reshape(-1)
        y = F.conv2d(x.reshape(1, -1, *sides), weight, bias, padding=1, groups=images)
        return F.leaky_relu(y.view(images, 12, *sides), 0.1)


def test_a_kernel_of_each_image():
    torch.manual_seed(0)
    model, x, style = KernelOfEachImage().eval(), torch.randn(4, 9, 21, 18), torch.randn(4, 5)
    fused = torchweld.fuse(model)
    with torch.no_grad():
        report = verify(model, fused, (x, style))
        assert report.ok, str(report)
        fused(x, style)
    assert not _calls(fused)
