"""Graphs of which each distinct call is decomposed once, against torch's own decomposition."""

from __future__ import annotations

import contextlib
import copy
import re

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim

from torchweld.capture import decompose, export_, random, torch_private
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
    assert [stem(n) for n in mine] == [stem(n) for n in its]  # kernels have names by them
    assert signature(ours) == signature(torchs)


def stem(node: torch.fx.Node) -> str:
    return re.sub(r"_\d+$", "", node.name)


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


# -- sizes that vary


AUTO = Dim.AUTO


def _sized(m, x, y):
    rows = x.view(x.shape[0] * 2, -1) @ m.w[:2].t() if x.shape[0] > 1 else x
    y = torch.cat([y, y.new_ones(x.shape[0], 1, y.shape[2])], 1)
    places = torch.arange(y.shape[1]).expand(x.shape[0], -1)
    return rows, F.softmax(y, -1).mean((0, 2)), places + y.size(0) // 2, y.shape[1] + 1


def _attend(m, x, y):
    q, k = (m.layer(t).unflatten(-1, (2, 2)).transpose(1, 2) for t in (x, y))
    return F.scaled_dot_product_attention(q, k, k).transpose(1, 2).reshape(*x.shape[:2], -1)


def _write_cache(m, x, y):
    y.index_copy_(1, torch.arange(x.shape[1]) + m.count, x)
    m.count.add_(x.shape[1])
    return (y * x.sum(1, keepdim=True)).flatten(1), y.squeeze(1)


SIZED = {
    "sizes": (lambda: Of(_sized, w=nn.Parameter(randn(4, 6))), ({0: AUTO}, {0: AUTO, 1: AUTO}),
              (randn(5, 12), randn(5, 3, 4)), (randn(7, 12), randn(7, 2, 4))),
    "attention": (lambda: Of(_attend, **LAYER), ({0: AUTO, 1: AUTO}, {0: AUTO, 1: AUTO}),
                  (randn(2, 3, 4), randn(2, 5, 4)), (randn(1, 1, 4), randn(1, 6, 4))),
    "cache": (lambda: Of(_write_cache, count=torch.tensor(1)),
              ({0: AUTO, 1: AUTO}, {0: AUTO, 1: AUTO}),
              (randn(2, 3, 4), randn(2, 6, 4)), (randn(1, 1, 4), randn(1, 5, 4))),
    "layers": (lambda: nn.TransformerEncoderLayer(4, 2, 8, batch_first=True).eval(),
               ({0: AUTO, 1: AUTO},), (randn(2, 3, 4),), (randn(1, 5, 4),)),
    "recurrent": (lambda: nn.LSTM(4, 5, 2, batch_first=True), ({0: AUTO, 1: AUTO},),
                  (randn(2, 3, 4),), (randn(1, 4, 4),)),
    "image": (lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.AvgPool2d(2),
                                    nn.AdaptiveAvgPool2d(1)).eval(),
              ({0: AUTO},), IMAGE, (randn(1, 3, 8, 8),)),
}  # fmt: skip


def known(made) -> tuple:
    """The guards and ranges that calls are held to."""
    nodes = made.graph.find_nodes(op="placeholder")
    sizes = [s for n in nodes for s in n.meta["val"].shape if isinstance(s, torch.SymInt)]
    guards, ranges = torch_private.size_guards(sizes[0])
    return set(map(str, guards)), {str(symbol): bounds for symbol, bounds in ranges.items()}


@pytest.mark.parametrize("name", SIZED)
def test_sizes_that_vary(name, whole):
    make, dims, inputs, others = SIZED[name]
    model = make()
    dims = dims if isinstance(model, Of) else dict(zip(("src", "input"), dims))
    dims = (dims,) if isinstance(model, Of) else tuple(dims.values())
    ours, torchs = both(model, inputs, dims)
    assert len(whole) == 1
    check_same(ours, torchs)
    assert known(ours) == known(torchs)
    check_graphs(ours, torchs, inputs)
    check_graphs(ours, torchs, others)


def check_graphs(ours, torchs, inputs) -> None:
    """Graphs that are run as they are: an ExportedProgram holds calls to the sizes of its trace."""
    found = []
    for made in (ours, torchs):
        given = iter(copy.deepcopy(inputs))
        state = {**made.state_dict, **made.constants}
        values = [copy.deepcopy(state[s.target]) if s.target else next(given)
                  for s in made.graph_signature.input_specs]  # fmt: skip
        found.append(made.graph_module(*values))
    torch.testing.assert_close(*found, rtol=0, atol=0)


def test_an_equal_size_is_computed_once():
    def function(m, x):
        return x.view(x.shape[0] * 4), x.new_ones(x.shape[0] * 4), x.expand(x.shape[0], 4)

    made = program.decomposed(exported(Of(function), X, (({0: AUTO},),)))
    targets = [n.target for n in calls(made) if is_size(n)]
    assert len(targets) == len(set(targets)) == 2


# -- what is traced


@pytest.fixture
def traces(monkeypatch):
    seen = []
    given = torch_private.functional_graph

    def trace(target, *args):
        seen.append(target)
        return given(target, *args)

    monkeypatch.setattr(torch_private, "functional_graph", trace)
    return seen


def test_equal_layers_are_traced_once(traces):
    layer = (nn.Linear(4, 4), nn.LayerNorm(4), nn.ReLU(inplace=True))
    counts = []
    for depth in (1, 5):
        traces.clear()
        program.decomposed(exported(nn.Sequential(*copy.deepcopy(layer * depth)), X))
        counts.append(len(traces))
    assert counts == [3, 3]


def test_unlike_calls_are_traced_apart(traces):
    def function(m, x):
        f, tensors = torch.xlogy, (x, x.clone(), 2, 2.0, -0.0, 0.0)
        y = [f(x, other) for other in tensors]
        return *y, f(x.t(), x.t()), f(x.double(), x.double()), f(x[:2], x[:2]), f(x[1:], x[1:])

    program.decomposed(exported(Of(function), (randn(3, 3),)))
    assert traces.count(aten.xlogy.Tensor) + traces.count(aten.xlogy.Scalar_Other) == 10


def test_what_is_one_operation_already_is_not_traced(traces):
    def function(m, x):
        return torch.cat([x.unsqueeze(0), x.neg().expand(2, 3, 3)]).permute(2, 0, 1), x[1:].t()

    made = program.decomposed(exported(Of(function), (randn(3, 3),)))
    wanted = ["unsqueeze", "neg", "expand", "cat", "permute", "slice", "permute"]
    assert [n.target.overloadpacket.__name__ for n in calls(made)] == wanted
    assert traces == [aten.t.default]  # a permutation, by the table


def test_every_draw_has_a_number_of_its_own():
    model = nn.Sequential(*(nn.Dropout(0.5) for _ in range(3)))
    made = program.decomposed(exported(model, X))
    salts = [n.args[1] for n in calls(made) if n.target is random.SEED]
    assert len(set(salts)) == 3


def test_nodes_say_where_they_are_from():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    made = program.decomposed(exported(model, X))
    modules = [[name for name, _ in n.meta["nn_module_stack"].values()] for n in calls(made)]
    assert [names[-1] for names in modules] == ["0", "0", "1", "1"]
    assert all("stack_trace" in n.meta for n in calls(made))


# -- what torch decomposes


def _write_through_a_view(m, x):
    y = x + 1
    y[0].mul_(2)
    return y


def _read_a_view_later(m, x):
    y = x + 1
    z = y.view(-1)
    y.mul_(2)
    return z


def _write_a_view_of_an_input(m, x):
    x[1].zero_()
    return x[0] + 1


def _loop(m, x):
    return torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x * 2, (x,))


def _reshape_in_place(m, x):
    y = x + 1
    y.t_()
    return y


def _from_data(m, x):
    return x[x > 0], x.sum().item()


def _strides_change(m, x):
    y = x.t() + 0
    y.copy_(x.t().contiguous())
    return y


@torch.library.custom_op("torchweld_tests::doubled", mutates_args=())
def doubled(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@doubled.register_fake
def _(x):
    return torch.empty_like(x)


WHOLE = {
    "a write through a view": _write_through_a_view,
    "a view read after a write": _read_a_view_later,
    "a write to a part of an input": _write_a_view_of_an_input,
    "a graph in a graph": _loop,
    "a form that changes in place": _reshape_in_place,
    "sizes from data": _from_data,
    "an operation of others": lambda m, x: doubled(x) + 1,
}


@pytest.mark.parametrize("name", WHOLE)
def test_torch_decomposes(name, whole):
    model = Of(WHOLE[name])
    inputs = (randn(3, 3),)
    ours, torchs = both(model, inputs)
    assert len(whole) == 2
    assert [str(n.target) for n in calls(ours)] == [str(n.target) for n in calls(torchs)]
    check_results(model, ours, torchs, inputs)


def test_a_write_to_one_of_two_inputs_that_are_one(whole):
    def function(m, x, y):
        x.add_(1)
        return y * 2

    x = randn(3, 4)
    made = exported(Of(function), (x, x))
    with contextlib.suppress(AssertionError):  # nor can torch
        program.decomposed(made)
    assert whole == [made]


def test_a_call_that_cannot_be_traced(whole, monkeypatch):
    def fail(*given):
        raise RuntimeError("as of some release")

    monkeypatch.setattr(torch_private, "functional_graph", fail)
    model = nn.Linear(4, 4)
    ours, torchs = both(model, X)
    assert len(whole) == 2
    check_same(ours, torchs)


def test_a_write_of_one_input_to_another_is_seen():
    """What is written is a copy: a later write to its source does not reach it."""

    def function(m, x, y):
        x.copy_(y)
        y.add_(1)
        return x * 2

    model, inputs = Of(function), (randn(3, 4), randn(3, 4))
    ours, torchs = both(model, inputs)
    check_same(ours, torchs)
    check_results(model, ours, torchs, inputs)
