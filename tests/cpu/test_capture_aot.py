"""Graphs through Dynamo and AOTAutograd, with each graph run by eager operations: what capture
itself must get right."""

from __future__ import annotations

import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._subclasses import FakeTensorMode

from torchweld.capture import aot, random
from torchweld.core import events
from torchweld.core.options import Options


class Compiler:
    """compile_graph that runs the captured module eagerly and remembers what it was given."""

    def __init__(self):
        self.captured = []

    def __call__(self, captured, options):
        self.captured.append(captured)
        return aot.run_eagerly(captured.module)

    @property
    def kinds(self):
        return [c.kind for c in self.captured]

    def targets(self, kind):
        graphs = [c.module.graph for c in self.captured if c.kind == kind]
        return [str(n.target) for g in graphs for n in g.nodes if n.op == "call_function"]


@pytest.fixture
def compiler():
    torch._dynamo.reset()
    torch.manual_seed(0)
    events.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error", events.TorchweldWarning)
        yield Compiler()


def compiled(fn, compiler, **kwargs):
    return torch.compile(fn, backend=aot.make_backend(compiler, Options()), **kwargs)


def check(fn, compiler, *args, **kwargs):
    """The compiled function gives what the function gives; returns the compiled one."""
    fused = compiled(fn, compiler, **kwargs)
    torch.testing.assert_close(fused(*args), fn(*args))
    return fused


def test_inference_knows_parameters_and_buffers(compiler):
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8)).eval()
    with torch.no_grad():
        check(model, compiler, torch.randn(3, 4))
    (captured,) = compiler.captured
    names = [n.name for n in captured.module.graph.find_nodes(op="placeholder")]
    shapes = [n.meta["val"].shape for n in captured.module.graph.find_nodes(op="placeholder")]
    inputs = set(range(len(names))) - captured.static_inputs
    assert captured.kind == "inference"
    assert [shapes[i] for i in inputs] == [(3, 4)]


def test_backward_is_compiled_at_the_first_backward(compiler):
    model = nn.Linear(4, 4)
    fused = compiled(model, compiler)
    loss = fused(torch.randn(3, 4)).sum()
    assert compiler.kinds == ["forward"]
    loss.backward()
    assert compiler.kinds == ["forward", "backward"]
    fused(torch.randn(3, 4)).sum().backward()
    assert compiler.kinds == ["forward", "backward"]


def test_backward_knows_parameters(compiler):
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2))
    compiled(model, compiler)(torch.randn(3, 4, requires_grad=True)).sum().backward()
    backward = compiler.captured[1]
    shapes = [
        tuple(n.meta["val"].shape) for n in backward.module.graph.find_nodes(op="placeholder")
    ]
    assert sorted(shapes[i] for i in backward.static_inputs) == [(2, 8), (8, 4)]


def test_graph_breaks(compiler):
    def fn(x):
        y = torch.sin(x) * 2
        torch._dynamo.graph_break()
        return torch.cos(y) + y.sum()

    check(fn, compiler, torch.randn(5))
    assert len(compiler.captured) == 2


def test_mutated_buffers(compiler):
    torch.manual_seed(1)
    model, reference = nn.BatchNorm1d(4), nn.BatchNorm1d(4)
    fused = compiled(model, compiler)
    for _ in range(3):
        x = torch.randn(8, 4)
        torch.testing.assert_close(fused(x), reference(x))
    for (name, buffer), (_, expected) in zip(model.named_buffers(), reference.named_buffers()):
        torch.testing.assert_close(buffer, expected, msg=name)


def test_mutated_inputs(compiler):
    def fn(x, y):
        x.add_(1)
        y[0].mul_(x.sum())
        return x * y

    fused = compiled(fn, compiler)
    args, expected = (torch.ones(3), torch.ones(2, 3)), (torch.ones(3), torch.ones(2, 3))
    torch.testing.assert_close(fused(*args), fn(*expected))
    torch.testing.assert_close(args, expected)


class Cache(nn.Module):
    """One step of decoding: writes a row, then attends to all of them."""

    def __init__(self):
        super().__init__()
        self.register_buffer("keys", torch.zeros(2, 8, 4))

    def forward(self, x, at, early=False):
        before = self.keys.sum() if early else 0
        self.keys.index_copy_(1, at, x)
        return (x @ self.keys.transpose(1, 2)).softmax(-1) + before


@pytest.mark.parametrize("early", [False, True])
def test_a_cache_is_written_in_place(compiler, early):
    model, reference = Cache(), Cache()
    fused = compiled(model, compiler)
    with torch.no_grad():
        for position in (0, 5, 3):
            x, at = torch.randn(2, 1, 4), torch.tensor([position])
            torch.testing.assert_close(fused(x, at, early), reference(x, at, early))
            torch.testing.assert_close(model.keys, reference.keys)
    targets = compiler.targets("inference")
    assert "aten.index_put_.default" in targets
    assert not {"aten.index_put.default", "aten.copy_.default"} & set(targets)


def test_a_cache_that_is_read_later_is_copied(compiler):
    class Later(Cache):
        def forward(self, x, at):
            view = self.keys.clone()
            self.keys.index_copy_(1, at, x)
            return view * 2 + self.keys, self.keys[0]

    model, reference = Later(), Later()
    fused = compiled(model, compiler)
    with torch.no_grad():
        for position in (0, 5):
            x, at = torch.randn(2, 1, 4), torch.tensor([position])
            torch.testing.assert_close(fused(x, at), reference(x, at))
            torch.testing.assert_close(model.keys, reference.keys)


def test_views_as_outputs(compiler):
    def fn(x):
        y = x * 2
        return y, y[1:], y.t(), x[0], x

    x = torch.randn(3, 4)
    outputs = check(fn, compiler, x)(x)
    assert outputs[1].data_ptr() == outputs[0].data_ptr() + 4 * outputs[0].element_size()
    assert outputs[3].data_ptr() == x.data_ptr()
    assert outputs[4] is x


def test_inputs_that_alias(compiler):
    def fn(x, y):
        x.add_(1)
        return y * 2

    base, reference = torch.zeros(4, 4), torch.zeros(4, 4)
    fused = compiled(fn, compiler)
    torch.testing.assert_close(fused(base[0], base[:2]), fn(reference[0], reference[:2]))
    torch.testing.assert_close(base, reference)
    x = torch.randn(3)
    torch.testing.assert_close(compiled(torch.mul, compiler)(x, x), x * x)


@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (1,), (7, 1, 5)])
def test_odd_shapes(compiler, shape):
    check(lambda x: (x.exp() + 1).softmax(-1), compiler, torch.randn(shape))


@pytest.mark.parametrize("make", [
    lambda: torch.randn(4, 5).t(), lambda: torch.randn(8, 5)[::2],
    lambda: torch.randn(5).expand(4, 5), lambda: torch.randn(2, 4, 5).permute(2, 0, 1),
])  # fmt: skip
def test_strided_inputs(compiler, make):
    check(lambda x: x.exp().sum(0) + x, compiler, make())


def test_outputs_that_are_no_tensors(compiler):
    out = compiled(lambda x: (x * 2, None, x.shape[0], 3.5), compiler)(torch.ones(2))
    assert out[1:] == (None, 2, 3.5)


def test_autocast(compiler):
    model = nn.Linear(8, 8)
    x = torch.randn(4, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        fused = compiled(model, compiler)
        out, expected = fused(x), model(x)
        assert out.dtype == torch.bfloat16
        torch.testing.assert_close(out, expected)
    out.float().sum().backward()
    assert model.weight.grad.dtype == torch.float32
    assert fused(x).dtype == torch.float32


def test_no_grad_and_grad_are_two_graphs(compiler):
    model = nn.Linear(4, 4)
    fused = compiled(model, compiler)
    with torch.no_grad():
        assert not fused(torch.ones(1, 4)).requires_grad
    assert fused(torch.ones(1, 4)).requires_grad
    assert compiler.kinds == ["inference", "forward"]


def test_dynamic_sizes_compile_once(compiler):
    model = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.GELU())
    fused = compiled(model, compiler, dynamic=True)
    for length in (5, 6, 17, 33):
        x = torch.randn(2, length, 4)
        torch.testing.assert_close(fused(x), model(x))
        fused(x).sum().backward()
    assert compiler.kinds == ["forward", "backward"]
    values = [n.meta["val"] for n in compiler.captured[0].module.graph.find_nodes(op="placeholder")]
    sizes = [s for v in values if isinstance(v, torch.Tensor) for s in v.shape]
    assert any(isinstance(s, torch.SymInt) for s in sizes)


def test_marked_dynamic(compiler):
    fused = compiled(lambda x: x.softmax(-1).sum(0), compiler)
    for length in (7, 9, 11):
        x = torch.randn(length, 4)
        torch._dynamo.mark_dynamic(x, 0)
        torch.testing.assert_close(fused(x), x.softmax(-1).sum(0))
    assert len(compiler.captured) == 1


def test_weights_changed_in_place(compiler):
    model = nn.Linear(4, 4)
    with torch.no_grad():
        fused = check(model, compiler, torch.ones(2, 4))
        model.weight.mul_(2)
        torch.testing.assert_close(fused(torch.ones(2, 4)), model(torch.ones(2, 4)))
        model.load_state_dict(nn.Linear(4, 4).state_dict())
        torch.testing.assert_close(fused(torch.ones(2, 4)), model(torch.ones(2, 4)))
    assert len(compiler.captured) == 1


@pytest.mark.parametrize("returned", [False, True])
def test_a_tensor_of_one_number_is_not_kept_for_the_backward(compiler, returned):
    """Where it is like another tensor, that one is not kept for its sizes either."""

    def f(x, w):
        one, some = torch.ones_like(x * w), x > 0
        guarded = torch.where(some, x * w, one).log()
        y = torch.where(some, guarded, -x * w) * torch.full_like(x, 3.0)
        y = (y * x.new_full(x.shape, 2.0) * x.new_ones(x.shape)).sin()
        return (y, one) if returned else (y,)

    inputs = [torch.randn(4, 5, requires_grad=True), torch.rand(5, requires_grad=True)]
    expected = torch.autograd.grad(f(*inputs)[0].sum(), inputs)
    found = torch.autograd.grad(compiled(f, compiler)(*inputs)[0].sum(), inputs)
    torch.testing.assert_close(found, expected)
    (forward,) = [c.module.graph for c in compiler.captured if c.kind == "forward"]
    kept = forward.output_node().args[0][1 + returned :]
    assert [n.op for n in kept] == ["placeholder"] * 2


def test_a_tensor_of_one_number_has_the_strides_of_what_it_is_like(compiler):
    def f(x, w):
        one = torch.ones_like(x)
        return one, torch.where(x > 0, x * w, one).log()

    x = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last).requires_grad_()
    one, y = compiled(f, compiler)(x, torch.rand(5))
    y.sum().backward()
    assert one.stride() == x.stride()


def test_library_operations_are_kept_whole(compiler):
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.qkv, self.conv = (
                nn.LayerNorm(8),
                nn.Linear(8, 24),
                nn.Conv1d(8, 8, 3, padding=1),
            )

        def forward(self, x):
            q, k, v = self.qkv(F.gelu(self.norm(x))).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
            return F.silu(self.conv(y.transpose(1, 2))).softmax(-1)

    model, x = Block(), torch.randn(2, 5, 8, requires_grad=True)
    check(model, compiler, x)(x).sum().backward()
    forward, backward = compiler.targets("forward"), compiler.targets("backward")
    for name in ("native_layer_norm", "gelu", "addmm", "convolution", "silu", "_softmax"):
        assert f"aten.{name}.default" in forward
    assert "aten._scaled_dot_product_flash_attention_for_cpu.default" in forward
    assert "aten._scaled_dot_product_flash_attention_for_cpu_backward.default" in backward
    for name in (
        "native_layer_norm_backward",
        "gelu_backward",
        "_softmax_backward_data",
        "convolution_backward",
    ):
        assert f"aten.{name}.default" in backward
    assert not [t for t in forward + backward if "detach" in t]


def test_a_compiler_that_fails_leaves_eager(compiler):
    def broken(captured, options):
        raise RuntimeError("no such luck\nand more")

    fused = torch.compile(nn.Linear(3, 3), backend=aot.make_backend(broken, Options()))
    with pytest.warns(events.TorchweldWarning, match="no such luck") as caught:
        fused(torch.ones(2, 3)).sum().backward()
    assert len([w for w in caught if w.category is events.TorchweldWarning]) == 1
    assert {e.key for e in events.events()} == {"compile:RuntimeError: no such luck"}


def test_a_first_call_that_fails_leaves_eager(compiler):
    def broken(captured, options):
        def run(args):
            args.clear()
            raise KeyError("not now")

        return run

    fused = torch.compile(nn.Linear(3, 3), backend=aot.make_backend(broken, Options()))
    with pytest.warns(events.TorchweldWarning, match="not now") as caught:
        for _ in range(2):
            fused(torch.ones(2, 3)).sum().backward()
    assert len([w for w in caught if w.category is events.TorchweldWarning]) == 1


def test_dropout_saves_a_seed_and_no_mask(compiler):
    model = nn.Sequential(nn.Linear(64, 64), nn.Dropout(0.25), nn.Linear(64, 64), nn.Dropout(0.5))
    compiled(model, compiler)(torch.randn(32, 64)).sum().backward()
    backward = compiler.captured[1]
    assert compiler.targets("forward").count("torchweld.seed.default") == 1
    assert "torchweld.seed.default" not in compiler.targets("backward")
    assert compiler.targets("backward").count("torchweld.philox_uniform.default") == 2
    saved = [n.meta["val"] for n in backward.module.graph.find_nodes(op="placeholder")]
    assert [v.shape for v in saved if v.dtype == torch.int64] == [(2,)]
    assert not [v for v in saved if v.dtype == torch.bool]


@pytest.mark.parametrize("p", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("grad", [False, True])
def test_dropout_means_what_eager_means(compiler, p, grad):
    x = torch.randn(200, 101, requires_grad=grad)
    fused = compiled(lambda x: F.dropout(x, p, True), compiler)
    torch.manual_seed(3)
    out = fused(x)
    kept = out != 0
    share = kept.float().mean().item()
    assert abs(share - (1 - p)) < 5 * (p * (1 - p) / x.numel()) ** 0.5 + 1e-9
    scale = 0.0 if p == 1 else 1 / (1 - p)
    torch.testing.assert_close(out[kept], x[kept] * scale)
    torch.manual_seed(3)
    torch.testing.assert_close(fused(x), out, rtol=0, atol=0)
    assert p in (0, 1) or not torch.equal(fused(x), out)
    if grad:
        out.sum().backward()
        torch.testing.assert_close(x.grad, kept * scale)


def test_two_dropouts_differ(compiler):
    x = torch.ones(1000)
    a, b = compiled(lambda x: (F.dropout(x), F.dropout(x)), compiler)(x)
    assert not torch.equal(a, b)


def test_dropout_under_checkpoint(compiler):
    from torch.utils.checkpoint import checkpoint

    model = nn.Sequential(nn.Linear(16, 16), nn.Dropout(0.5), nn.GELU())
    x = torch.randn(8, 16, requires_grad=True)
    out = compiled(lambda x: checkpoint(model, x, use_reentrant=False), compiler)(x)
    (grad,) = torch.autograd.grad(out.sum(), model[0].bias)
    dropped = (out == 0).all(0)
    assert (grad[dropped] == 0).all()
    assert grad.abs().sum() > 0


def test_dropout_with_dynamic_sizes(compiler):
    fused = compiled(lambda x: F.dropout(x, 0.5, True), compiler, dynamic=True)
    for length in (10, 13, 14):
        x = torch.ones(length, 5, requires_grad=True)
        out = fused(x)
        out.sum().backward()
        torch.testing.assert_close(x.grad, out.detach())
    assert compiler.kinds == ["forward", "backward"]


def test_philox_stream_is_indexed_by_logical_element():
    seed = torch.tensor([1234567], dtype=torch.int64)
    flat = random.UNIFORM(seed, [12])
    assert torch.equal(random.UNIFORM(seed, [3, 4]).flatten(), flat)
    assert random.UNIFORM(seed, [0, 3]).shape == (0, 3)
    assert random.UNIFORM(seed, []).item() == flat[0].item()


def test_custom_operators_are_well_formed():
    seed = random.SEED(1, 0, device=torch.device("cpu"))
    torch.library.opcheck(random.UNIFORM, (seed, [3, 4]))
    torch.library.opcheck(
        random.SEED,
        (2, 0),
        {"device": torch.device("cpu")},
        test_utils=("test_schema", "test_faketensor"),
    )


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("shape", [(6, 5), (2, 5, 3)])
def test_cross_entropy_saves_the_logits_not_the_log_probabilities(
    compiler, shape, reduction, weighted
):
    def loss(x, weight, classes):
        return F.cross_entropy(
            (x * 2).float(), classes, weight, reduction=reduction, ignore_index=1
        ).sum()

    x = torch.randn(shape, dtype=torch.bfloat16, requires_grad=True)
    classes = torch.randint(0, 5, (shape[0], *shape[2:]))
    classes.view(-1)[:2] = torch.tensor([1, 4])  # one is ignored, one is not
    weight = torch.rand(5) if weighted else None
    compiled = torch.compile(loss, backend=aot.make_backend(compiler, Options()))
    (expected,) = torch.autograd.grad(loss(x, weight, classes), x)
    (given,) = torch.autograd.grad(compiled(x, weight, classes), x)
    torch.testing.assert_close(given, expected)
    (forward,) = (c.module for c in compiler.captured if c.kind == "forward")
    saved = [n.meta["val"] for n in forward.graph.output_node().args[0][1:] if n is not None]
    assert not any(t.dtype == torch.float32 and t.shape == x.shape for t in saved)
    if x.dim() == 2 and not weighted:
        assert "aten.sum.dim_IntList" not in compiler.targets("backward")


def test_a_backward_whose_trace_was_wrong_runs_in_eager(compiler):
    """torch 2.11 traces a norm of an empty tensor with one dimension too many."""
    session = aot._Session(compiler, Options(), None, "norm")
    with FakeTensorMode():
        graph = torch.fx.symbolic_trace(lambda kept, tangent: (kept * tangent,))
        kept, tangent = graph.graph.find_nodes(op="placeholder")
        kept.meta["val"], tangent.meta["val"] = torch.empty(1, 1, 3), torch.empty(3)
    session._kept_names = frozenset(["kept"])
    backward = session.backward(graph, ())
    with pytest.warns(events.TorchweldWarning, match=r"traced as \(1, 1, 3\), and is \(2, 3\)"):
        (found,) = backward([torch.ones(2, 3), torch.full((3,), 4.0)])
    assert torch.equal(found, torch.full((2, 3), 4.0)) and compiler.captured == []


def test_a_product_of_one_term_keeps_its_strides_without_dynamo(compiler):
    """Written out as a * b it takes the strides of its factors, which no bmm has; the backward
    takes it as it lies."""

    class Products(nn.Module):
        def forward(self, a, b):
            return (torch.bmm(a.permute(2, 1, 0), b.mT).cumprod(1),)

    a, b = torch.randn(1, 5, 2, requires_grad=True), torch.randn(2, 3, 1, requires_grad=True)
    graph = torch.fx.symbolic_trace(Products())
    (found,) = aot.make_backend(compiler, Options())(graph, [a, b])(a, b)
    found.sum().backward()
    (kept,) = (
        n.meta["val"] for n in compiler.captured[-1].module.graph.nodes if n.name == "bmm"
    )
    assert kept.stride() == (3, 6, 1)  # contiguous, as traced: (15, 3, 1)
