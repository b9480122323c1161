"""Graphs of which each distinct call is decomposed once, against torch's own decomposition."""

from __future__ import annotations

import contextlib
import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from torchweld.capture import decompose, export_, torch_private
from torchweld.capture.decomposing import program
from torchweld.capture.decomposing.call import SYMBOLIC, expression
from torchweld.capture.inline import inline

aten = torch.ops.aten


class Of(nn.Module):
    """A module of a function of itself and its inputs, with some tensors of its own."""

    def __init__(self, function, **own) -> None:
        super().__init__()
        self.function = function
        for name, value in own.items():
            if isinstance(value, (nn.Module, nn.Parameter)):
                setattr(self, name, value)
            else:
                self.register_buffer(name, value)

    def forward(self, *inputs):
        return self.function(self, *inputs)


def randn(*sizes, **kwargs):
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(len(sizes)), **kwargs)


def _tied():
    made = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6))
    made[2].weight = made[0].weight
    return made


def _attention(is_causal=False, mask=None, gqa=False, dropout=0.0):
    def attend(m, q, k, v):
        return F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=is_causal, enable_gqa=gqa, dropout_p=dropout
        )

    return Of(attend), (randn(2, 4, 5, 8), *(randn(2, 2 if gqa else 4, 5, 8) for _ in range(2)))


def _written_to_buffers(m, x):
    m.count.add_(1)
    m.seen.copy_(x)
    m.places.index_copy_(1, torch.arange(2), x[:, :2])
    return x + m.count, m.places[:, 1:] * 2, m.seen.sum()


def _write_inputs(m, x, y):
    y.index_copy_(0, torch.tensor([2, 0]), x[:2])
    x.mul_(2).add_(1)
    return x.t() @ y, y.relu_()


def _buffers():
    return {"count": torch.tensor(0), "seen": torch.zeros(3, 4), "places": torch.zeros(3, 6)}


def _in_place(m, x):
    y = m.layer(x)
    z = F.relu_(y)
    z += 1
    w = z.view(-1)
    z = z * w.sum()
    z.clamp_(max=3).mul_(x.sum())
    return z, z.t()


def _constants(m, x):
    table = torch.tensor([0.5, 2.0, 3.0, 4.0])
    where = torch.where(x > 0, x, table)
    return where.masked_fill(torch.ones(3, 4, dtype=torch.bool).tril(), 1.0), None, 3


def _views(m, x):
    a, b = x.chunk(2, -1)
    rows = torch.stack([a.transpose(0, 1).reshape(-1), b.flatten()])
    return rows[:, 1:3].expand(2, 2), x.unsqueeze(0).permute(2, 0, 1).contiguous(), x, a.T


def _casts(m, x):
    return x.to(torch.bfloat16).float() + x.double(), x.to(torch.float32), x.type_as(x)


def _products(m, x):
    rows = torch.einsum("ij,kj->ik", x, x), torch.einsum("ij,ij->i", x, x)
    strided = F.linear(x.expand(2, 3, 4).transpose(0, 1), m.w), x.expand(2, 3, 4).mT @ m.w.t()[:3]
    return *rows, *strided, x @ x[0], x[1].outer(x[0]), x.expand(2, 3, 4) @ m.w


LAYER = {"layer": nn.Linear(4, 4)}
IMAGE = (randn(2, 3, 8, 8),)
X = (randn(3, 4),)
CASES = {
    "linear": (lambda: nn.Sequential(nn.Linear(4, 5), nn.GELU(), nn.Linear(5, 5)), X),
    "no bias": (lambda: nn.Linear(4, 5, bias=False), (randn(2, 3, 4),)),
    "tied": (_tied, (randn(2, 6),)),
    "in place": (lambda: Of(_in_place, **LAYER), X),
    "views": (lambda: Of(_views), X),
    "casts": (lambda: Of(_casts), X),
    "constants": (lambda: Of(_constants), X),
    "products": (lambda: Of(_products, w=nn.Parameter(randn(4, 4))), X),
    "buffers": (lambda: Of(_written_to_buffers, **_buffers()), X),
    "one tensor twice": (lambda: Of(lambda m, x: (x * x, x + x, x - x.t())), (randn(3, 3),)),
    "unused": (lambda: Of(lambda m, x, y: x.sort(), **_buffers()), (*X, *X)),
    "out of an input": (lambda: Of(lambda m, x, y: (x, y.view(-1))), (*X, *X)),
    "attention": (lambda: _attention()[0], _attention()[1]),
    "causal": (lambda: _attention(is_causal=True)[0], _attention()[1]),
    "masked": (lambda: _attention(mask=torch.ones(5, 5).tril().bool())[0], _attention()[1]),
    "shared heads": (lambda: _attention(gqa=True)[0], _attention(gqa=True)[1]),
    "dropped scores": (lambda: _attention(dropout=0.3)[0], _attention()[1]),
    "dropout": (lambda: nn.Sequential(nn.Dropout(0.2), nn.Linear(4, 4), nn.Dropout(0.2)), X),
    "channel dropout": (lambda: nn.Sequential(nn.Dropout2d(0.5), nn.Dropout2d(0.5)), IMAGE),
    "random": (lambda: Of(lambda m, x: (torch.rand_like(x), torch.randn(3), x.bernoulli())), X),
    "norms": (
        lambda: nn.Sequential(nn.LayerNorm(4), nn.RMSNorm(4), nn.Softmax(-1), nn.LogSoftmax(0)), X
    ),
    "group norm": (lambda: nn.GroupNorm(3, 3), IMAGE),
    "convolutions": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 4, 3, padding="same"), nn.BatchNorm2d(4), nn.ReLU(inplace=True),
            nn.MaxPool2d(2), nn.Conv2d(4, 4, 3, groups=2), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        ).eval(), IMAGE,
    ),
    "batch norm": (
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Hardswish(inplace=True)),
        IMAGE,
    ),
    "instance norm": (lambda: nn.InstanceNorm2d(3, track_running_stats=True), IMAGE),
    "resized": (
        lambda: Of(lambda m, x: [F.interpolate(x, scale_factor=2, mode=mode)
                                 for mode in ("nearest", "bilinear", "bicubic")]), IMAGE,
    ),
    "padded": (lambda: Of(lambda m, x: (F.pad(x, (1, 2, 0, 1), "reflect"), F.pad(x, (1, 0)))),
               IMAGE),
    "lstm": (lambda: nn.LSTM(4, 5, 2, batch_first=True, bidirectional=True), (randn(2, 3, 4),)),
    "gru": (lambda: nn.GRU(4, 5), (randn(2, 3, 4),)),
    "encoder": (lambda: nn.TransformerEncoderLayer(4, 2, 8, 0.0, batch_first=True).eval(),
                (randn(2, 3, 4),)),
    "embedding": (lambda: Of(lambda m, i: (m.e(i), F.one_hot(i, 7)), e=nn.Embedding(7, 3)),
                  (torch.tensor([[1, 2], [6, 0]]),)),
    "loss": (lambda: Of(lambda m, x, i: (F.cross_entropy(x, i), F.mse_loss(x, x * 2))),
             (*X, torch.tensor([0, 3, 1]))),
    "statistics": (lambda: Of(lambda m, x: (x.std(), x.var(0), x.mean(), x.norm(), x.topk(2),
                                            x.cumsum(0), x.amax(0), x.max(1))), X),
    "complex": (lambda: Of(lambda m, x: torch.view_as_real(
        torch.view_as_complex(x.view(3, 2, 2)) * torch.polar(x[:, :2], x[:, 2:]))), X),
    "indices": (lambda: Of(lambda m, x: (x[torch.tensor([2, 0])], x[x[:, 0].argsort()],
                                         x.gather(1, x.argsort(1)), x.roll(1, 0))), X),
    "scattered": (lambda: Of(lambda m, x: x.new_zeros(5, 4).index_add_(
        0, torch.tensor([0, 4, 0]), x).scatter_(0, torch.zeros(1, 4, dtype=torch.long), 7.0)), X),
}  # fmt: skip


def exported(model, inputs, dims=None):
    with torch.no_grad(), torch_private.any_sizes() if dims else contextlib.nullcontext():
        made = torch.export.export(model, inputs, dynamic_shapes=dims, strict=False)
    export_.hold_squeezes(made)
    inline(made.graph_module)
    return made


def both(model, inputs, dims=None):
    """(Ours, torch's), of one export each, since a trace adds to what is known of sizes."""
    first, second = (exported(model, inputs, dims) for _ in range(2))
    with torch_private.any_sizes() if dims else contextlib.nullcontext(), torch.no_grad():
        return program.decomposed(first), second.run_decompositions(decompose.table())


def calls(made) -> list:
    return [node for node in made.graph.nodes if node.op == "call_function"]


def form(value):
    if isinstance(value, (tuple, list)):
        return [form(each) for each in value]
    if not isinstance(value, torch.Tensor):
        return type(value), str(expression(value))
    sizes = [str(expression(size)) for size in (*value.shape, *value.stride())]
    return value.dtype, value.device, sizes, str(expression(value.storage_offset()))


def signature(made) -> list:
    said = made.graph_signature
    inputs = [(s.kind, s.target, s.persistent, s.arg) for s in said.input_specs]
    nodes = made.graph.output_node().args[0]
    outputs = [(s.kind, s.target, type(s.arg)) for s in said.output_specs]
    return [inputs, outputs, [form(n.meta["val"]) if isinstance(n, torch.fx.Node) else n
                              for n in nodes]]  # fmt: skip


def is_size(node) -> bool:
    return isinstance(node.meta.get("val"), SYMBOLIC)


def check_same(ours, torchs) -> None:
    mine, its = ([n for n in calls(p) if not is_size(n)] for p in (ours, torchs))
    assert [str(n.target) for n in mine] == [str(n.target) for n in its]
    assert [form(n.meta.get("val")) for n in mine] == [form(n.meta.get("val")) for n in its]
    assert signature(ours) == signature(torchs)


def check_results(model, ours, torchs, inputs) -> None:
    """Results, and what is written, are the same."""
    before = copy.deepcopy(model.state_dict())
    found = []
    for made in (ours, torchs):
        torch.manual_seed(0)
        given = copy.deepcopy(inputs)
        runs = made.module()
        results = runs(*given)
        found.append((results, given, dict(runs.named_buffers())))
        model.load_state_dict(before)
    torch.testing.assert_close(*found, rtol=0, atol=0, equal_nan=True)


@pytest.fixture
def whole(monkeypatch):
    """Programs that torch decomposed as a whole."""
    seen = []
    given = torch.export.ExportedProgram.run_decompositions

    def run(self, *args, **kwargs):
        seen.append(self)
        return given(self, *args, **kwargs)

    monkeypatch.setattr(torch.export.ExportedProgram, "run_decompositions", run)
    return seen


@pytest.mark.parametrize("name", CASES)
def test_as_torch_does_it(name, whole):
    make, inputs = CASES[name]
    model = make()
    ours, torchs = both(model, inputs)
    assert len(whole) == 1  # ours was not
    check_same(ours, torchs)
    check_results(model, ours, torchs, inputs)
