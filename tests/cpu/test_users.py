"""What users do with models: fused equals eager, and nothing that torch.compile allows raises."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import torchweld
from torchweld.core.events import TorchweldWarning
from torchweld.core.torch_private import pytree


@pytest.fixture(autouse=True)
def fresh():
    torch.compiler.reset()
    torch.manual_seed(0)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def no_fallback(recwarn):
    yield
    assert not [str(w.message) for w in recwarn if isinstance(w.message, TorchweldWarning)]


def fuse(model, *args, **options):
    return torchweld.fuse(model, *args, **options)


def close(found, expected, tolerance=2e-5):
    torch.testing.assert_close(
        found, expected, rtol=tolerance, atol=tolerance, equal_nan=True, check_stride=True
    )


def results(model, call, args, kwargs, train):
    """Tensors among the outputs; gradients of inputs and parameters of a fixed combination."""
    args = [_leaf(a, train) for a in args]
    with torch.set_grad_enabled(train):
        outputs = pytree.tree_leaves(call(*args, **kwargs))
    outputs = [t for t in outputs if isinstance(t, torch.Tensor)]
    ends = [t for t in outputs if t.requires_grad]
    leaves = [a for a in args if isinstance(a, torch.Tensor) and a.requires_grad]
    if train and isinstance(model, nn.Module):
        leaves += [p for p in model.parameters() if p.requires_grad]
    if not ends or not leaves:
        return [t.detach() for t in outputs], []
    weights = [torch.arange(t.numel()).view(t.shape).cos().to(t.dtype) for t in ends]
    grads = torch.autograd.grad(ends, leaves, weights, allow_unused=True)
    return [t.detach() for t in outputs], [None if g is None else g.contiguous() for g in grads]


def _leaf(arg, train):
    if not isinstance(arg, torch.Tensor):
        return arg
    return arg.detach().clone().requires_grad_(train and arg.is_floating_point())


def same(model, *args, train=True, tolerance=2e-5, **kwargs):
    """Fused and eager agree, forward and backward."""
    expected = results(model, model, args, kwargs, train)
    found = results(model, fuse(model), args, kwargs, train)
    close(found[0], expected[0], tolerance)
    close(found[1], expected[1], 10 * tolerance)


# -- models


class Residual(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.norm = nn.GroupNorm(4, channels)
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x):
        return x + self.conv(F.silu(self.norm(x)))


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.down = nn.Conv2d(3, 8, 3, padding=1), Residual(8)
        self.middle, self.up = Residual(8), nn.Conv2d(16, 8, 1)

    def forward(self, x):
        wide = self.down(self.first(x))
        deep = F.interpolate(self.middle(F.avg_pool2d(wide, 2)), scale_factor=2.0)
        return F.silu(self.up(torch.cat([wide, deep], 1)))


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(11, 8, padding_idx=0)
        self.bag = nn.EmbeddingBag(11, 8, mode="mean")
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens):
        return self.head(self.embed(tokens)), self.bag(tokens)


class Checkpointed(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.norm = nn.Linear(5, 5), nn.LayerNorm(5)

    def forward(self, x):
        inner = lambda t: torch.tanh(self.norm(self.linear(t)))  # noqa: E731
        return checkpoint(inner, x, use_reentrant=False) + x


class CheckpointedAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(8, 24), nn.Linear(8, 8)

    def attend(self, x):
        q, k, v = self.inner(x).view(2, -1, 3, 2, 4).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.outer(y.transpose(1, 2).reshape(x.shape)).tanh()

    def forward(self, x):
        return checkpoint(self.attend, x, use_reentrant=False)


class Branching(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(5, 5)

    def forward(self, x):
        y = self.linear(x)
        y = y.exp() if y.sum() > 0 else y.cos()
        return y[:, int(y.argmax()) % 3 :], y[y > 0.5]


class Structured(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(5, 3)

    def forward(self, x, *, scale=1.0, mask=None):
        y = self.linear(x) * scale
        y = y if mask is None else y.masked_fill(mask, 0)
        return {"y": y, "parts": (y.exp(), [y.sum(0)]), "count": 3, "none": None}


def sequence(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


PADDING = torch.tensor([[False] * 7, [False] * 5 + [True] * 2])
MODELS = {
    "lstm": (lambda: nn.LSTM(8, 16, 2, batch_first=True), (sequence(3, 5, 8),)),
    "gru": (lambda: nn.GRU(8, 16, bidirectional=True), (sequence(5, 3, 8),)),
    "gru_cell": (lambda: nn.GRUCell(8, 16), (sequence(3, 8), sequence(3, 16))),
    "attention": (
        lambda: nn.MultiheadAttention(32, 4, batch_first=True),
        (sequence(2, 7, 32), sequence(2, 7, 32), sequence(2, 7, 32), PADDING),
    ),
    "transformer": (
        lambda: nn.Transformer(32, 4, 1, 1, 64, dropout=0.0, batch_first=True),
        (sequence(2, 6, 32), sequence(2, 5, 32)),
    ),
    "unet": (UNet, (sequence(2, 3, 8, 8),)),
    "unet_channels_last": (
        lambda: UNet().to(memory_format=torch.channels_last),
        (sequence(2, 3, 8, 8).to(memory_format=torch.channels_last),),
    ),
    "tied": (Tied, (torch.tensor([[0, 1, 2, 0], [3, 10, 0, 4]]),)),
    "by_frequency": (
        lambda: nn.Embedding(5, 3, scale_grad_by_freq=True),
        (torch.tensor([1, 2, 1]),),
    ),
    "weight_norm": (
        lambda: nn.utils.parametrizations.weight_norm(nn.Linear(5, 6)),
        (sequence(3, 5),),
    ),
    "spectral_norm": (
        lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(5, 6)).eval(),
        (sequence(3, 5),),
    ),
    "checkpointed": (Checkpointed, (sequence(3, 5),)),
    "checkpointed attention": (CheckpointedAttention, (sequence(2, 7, 8),)),
    "branching": (Branching, (sequence(3, 5),)),
}


@pytest.mark.parametrize("name", MODELS)
def test_models(name, no_fallback):
    make, args = MODELS[name]
    same(make(), *args)


@pytest.mark.parametrize("name", ["attention", "unet", "tied"])
def test_models_ahead_of_time(name, no_fallback):
    close_ahead_of_time(name)


@pytest.mark.filterwarnings("ignore::torchweld.core.events.TorchweldWarning")
def test_an_lstm_ahead_of_time():
    """With torch 2.11 it is left to torch.compile."""
    close_ahead_of_time("lstm")


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.filterwarnings("ignore::torchweld.core.events.TorchweldWarning")
def test_recurrent_layers_stay_one_call(kind):
    """Taken apart they are thousands of kernels: minutes for a sequence of 500 steps."""
    model, x = kind(8, 16, 2, bidirectional=True).eval(), sequence(40, 3, 8)
    fused = fuse(model, (x,))
    with torch.no_grad():
        close(pytree.tree_leaves(fused(x)), pytree.tree_leaves(model(x)))
    assert all(len(record.graph.nodes) < 5 for record in torchweld.records(fused))


def close_ahead_of_time(name):
    make, args = MODELS[name]
    model = make().eval()
    fused = fuse(model, args)
    with torch.no_grad():
        close(pytree.tree_leaves(fused(*args)), pytree.tree_leaves(model(*args)))


def test_data_dependent_flow_after_an_attempt_ahead_of_time():
    model = Branching()
    with torch.no_grad():
        with pytest.warns(TorchweldWarning, match="goes through torch.compile"):
            fused = fuse(model, torch.randn(3, 5))
        for x in torch.randn(4, 3, 5):
            close(fused(x), model(x))


# -- functions


def in_place(x, y):
    z = x.clone()
    z += y
    z.mul_(2).relu_()
    z[0] = 1.0
    z[:, 1:3] += 1
    z[z > 3] = 0
    return z


class Cubed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, grad):
        return grad * 3 * ctx.saved_tensors[0]


def spectrum(x):
    z = torch.complex(x, x * 2)
    return torch.fft.ifft(torch.fft.fft(z) * z.conj()).real + torch.fft.rfft(x.relu()).abs().sum()


def rotary(x):
    turns = torch.polar(torch.ones(6, 4), torch.arange(24.0).view(6, 4))
    pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * turns).flatten(-2)


def frozen_part(x):
    with torch.no_grad():
        y = x.exp()
    return x * y.detach() + x


def mixed_integers(i, b):
    return i // 3, i % 5, i << 2, i & 3, ~b, b.sum(), i.float().mean(), i.cumsum(0), i.sort()[0]


LABELS = torch.tensor([1, 0, -100, 7, 9, 2])
FUNCTIONS = {
    "custom": (lambda x: Cubed.apply(x + 1).sin(), (4, 3)),
    "frozen": (frozen_part, (4, 3)),
    "spectrum": (spectrum, (4, 8)),
    "rotary": (rotary, (2, 6, 8)),
    "smoothed": (lambda x: F.cross_entropy(x, LABELS, label_smoothing=0.1), (6, 10)),
    "cosine": (lambda x: F.cosine_similarity(x, x.roll(1, 0)), (6, 10)),
    "distances": (lambda x: torch.cdist(x, x.roll(1, 0)), (4, 6)),
    "kl": (lambda x: F.kl_div(x.log_softmax(1), (x * 2).softmax(1).detach()), (4, 6)),
    "topk": (lambda x: (x.topk(3)[0], x.median(), x.kthvalue(2, 1)[0]), (4, 6)),
    "windows": (lambda x: x.unfold(1, 3, 2).sum(-1), (4, 6)),
    "prefixes": (lambda x: (x.cumprod(0), x.logcumsumexp(1)), (4, 6)),
    "resized": (lambda x: F.interpolate(x[None, None], scale_factor=2, mode="bilinear"), (4, 6)),
    "special": (lambda x: torch.special.erfc(x) + torch.lgamma(x.abs() + 1), (4, 6)),
    "rrelu": (lambda x: F.rrelu(x * 2, 0.1, 0.3, training=False) + 1, (4, 6)),
    "item": (lambda x: x * x.sum().item(), (3,)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name, no_fallback):
    function, shape = FUNCTIONS[name]
    same(function, torch.randn(*shape), tolerance=1e-4)


def test_in_place_and_integers(no_fallback):
    same(in_place, torch.randn(4, 5), torch.randn(4, 5), train=False)
    same(mixed_integers, torch.randint(-9, 9, (12,)), torch.rand(12) > 0.5, train=False)


@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (0, 3), (1, 1)])
def test_scalars_and_empty_tensors(shape, no_fallback):
    same(lambda x: (x * 2 + 1, x.sum(), x.exp().mean(), x.softmax(-1)), torch.randn(shape))


def test_many_indices(no_fallback):
    at = torch.arange(300_000) * 7 % 50
    same(lambda w: (F.embedding(at, w).mean(0), w[at].mean()), torch.randn(50, 4), tolerance=1e-4)
    same(lambda x: x.new_zeros(50).scatter_add(0, at, x), torch.ones(300_000), train=False)


@pytest.mark.parametrize("layout", [torch.Tensor.to_sparse, torch.Tensor.to_sparse_csr])
def test_sparse_matrices(layout):
    matrix, x = layout(torch.randn(4, 5).relu()), torch.randn(5, 3)
    close(fuse(lambda m, x: (m @ x).exp())(matrix, x), (matrix @ x).exp())


def test_closures_are_read_again(no_fallback):
    state, x = {"k": 2.0}, torch.randn(3)
    fused = fuse(lambda x: x * state["k"])
    close(fused(x), x * 2)
    state["k"] = 3.0
    close(fused(x), x * 3)


# -- memory


def test_views_of_outputs_and_inputs(no_fallback):
    def views(x):
        y = x.exp()
        return y[1:], y.t(), y.view(-1), x[0], x.view(-1), x

    x = torch.randn(4, 5)
    tail, turned, flat, row, whole, itself = found = fuse(views)(x)
    close(found, views(x))
    assert itself is x and row.data_ptr() == x.data_ptr()
    turned.fill_(7)
    assert (flat == 7).all() and (tail == 7).all()
    whole.zero_()
    assert (x == 0).all()


@pytest.mark.parametrize("step", [1, 2])
def test_an_input_changed_in_place(step, no_fallback):
    def changing(x):
        x.add_(1)
        x[1:].mul_(2)
        return x * 2

    ours, theirs = torch.arange(12.0)[::step], torch.arange(12.0)[::step]
    close(fuse(changing)(ours), changing(theirs))
    close(ours, theirs)


def test_inputs_that_share_memory(no_fallback):
    base, fused = torch.randn(6, 5), fuse(lambda x, y: x * 2 + y.sum(0))
    for x, y in ((base, base), (base[:4], base[2:]), (base[:4], base[:4])):
        close(fused(x, y), x * 2 + y.sum(0))


@pytest.mark.filterwarnings("ignore::torchweld.core.events.TorchweldWarning")
def test_changed_inputs_that_share_memory():
    """The windows that AOTAutograd makes of their common base run unchanged, with a warning."""

    def changing(x, y):
        x.add_(1)
        return x * y

    ours = torch.randn(6, 5)
    theirs, fused = ours.clone(), fuse(changing)
    close(fused(ours[:4], ours[2:]), changing(theirs[:4], theirs[2:]))
    close(fused(ours, ours), changing(theirs, theirs))
    close(ours, theirs)


# -- training


def test_batch_norm_between_training_and_evaluation(no_fallback):
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten())
    eager, fused = copy.deepcopy(model), fuse(model)
    for _ in range(2):
        x = torch.randn(4, 3, 8, 8) + 3
        eager.train(), fused.train()
        expected, found = eager(x), fused(x)
        expected.square().mean().backward(), found.square().mean().backward()
        close(found, expected)
        eager.eval(), fused.eval()
        with torch.no_grad():
            close(fused(x), eager(x))
    close(dict(fused.state_dict()), dict(eager.state_dict()))
    close([p.grad for p in fused.parameters()], [p.grad for p in eager.parameters()], 1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_statistics_of_batch_norm_are_as_exact_as_those_of_eager(dtype, no_fallback):
    model, x = nn.Sequential(nn.BatchNorm2d(3), nn.ReLU()), torch.randn(16, 3, 33, 33)
    x = x if dtype == torch.float32 else x + 30  # the saved mean must not have 8 bits
    report = torchweld.verify(model, fuse(model), x.to(dtype), train=True)
    assert report.ok, report


def test_gradients_of_what_was_squeezed_in_place(no_fallback):
    """Its gradient is a window scattered into all of a row."""
    same(lambda x: F.adaptive_avg_pool1d(x.transpose(1, 2), 1).flatten(1), sequence(2, 64, 48))


@pytest.mark.parametrize("window", [((3, 4), (8, 2), 1), ((8, 6), (6, 1), 0), ((6, 8), (1, 6), 0)])
def test_windows_scattered_into_memory(window, no_fallback):
    part = sequence(*window[0])
    same(lambda x: torch.as_strided_scatter(x.exp().flatten(), part, *window), sequence(6, 8))


def test_windows_on_new_memory(no_fallback):
    same(lambda x: torch.as_strided(x.exp().flip(0), (3, 3), (8, 1), 3).exp(), sequence(6, 8))


@pytest.mark.parametrize("train", [False, True])
def test_windows_count_from_where_memory_begins(train):
    """The same graph serves inputs that begin elsewhere in their memory."""
    memory, fused = sequence(14), fuse(lambda x: windows(x))

    def windows(x):
        part = x.new_ones(2, 2)
        return x.as_strided((2, 2), (1, 2), 1).sin(), x.as_strided_scatter(part, (2, 2), (3, 1), 4)

    for begin in (0, 2, 3, 0):
        inputs = [memory.clone().requires_grad_(train)[begin : begin + 11] for _ in range(2)]
        for one, other in zip(fused(inputs[0]), windows(inputs[1]), strict=True):
            torch.testing.assert_close(one, other)


def test_gradients_of_a_view_of_one_value(no_fallback):
    def spread(x):
        return x.exp(), x.reshape(2, -1).sum().abs()

    x = torch.randn(1, 3, 64, requires_grad=True)
    losses = fuse(spread, dynamic=True)(x)
    (found,) = torch.autograd.grad([t.sum() for t in losses], x)
    (expected,) = torch.autograd.grad([t.sum() for t in spread(x)], x)
    close(found, expected)


def test_gradients_accumulate(no_fallback):
    model = nn.Sequential(nn.Linear(5, 7), nn.LayerNorm(7), nn.GELU(), nn.Linear(7, 2))
    models = copy.deepcopy(model), fuse(model)
    steps = [torch.optim.AdamW(m.parameters(), 1e-2) for m in models]
    for step in range(3):
        for x in torch.randn(2, 6, 5):
            for m in models:
                m(x).square().mean().backward()
        for optimizer in steps:
            optimizer.step()
            optimizer.zero_grad(set_to_none=step == 0)
    close(*(dict(m.state_dict()) for m in models), 1e-4)


def test_double_backward_is_refused_as_torch_compile_does():
    x = torch.randn(5, requires_grad=True)
    (grad,) = torch.autograd.grad(fuse(lambda x: x.tanh().exp().sum())(x), x, create_graph=True)
    with pytest.raises(RuntimeError, match="double backward"):
        grad.sum().backward()


def test_dropout_follows_the_seed(no_fallback):
    model = nn.Sequential(nn.Linear(8, 64), nn.Dropout(0.5))
    fused, x = fuse(model), torch.ones(256, 8)
    torch.manual_seed(1)
    first = fused(x)
    other = fused(x)
    torch.manual_seed(1)
    assert torch.equal(fused(x), first) and not torch.equal(other, first)
    assert abs((first == 0).float().mean() - 0.5) < 0.02
    fused.eval()
    close(fused(x), model(x))


def test_autocast(no_fallback):
    model = nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 4))
    x, fused = torch.randn(8, 16), fuse(model)
    with torch.autocast("cpu", torch.bfloat16):
        close(fused(x), model(x), 2e-2)
    close(fused(x), model(x))


@pytest.mark.parametrize("ahead", [False, True])
def test_inference_mode_then_no_grad(ahead, no_fallback):
    model, x = nn.Sequential(nn.Linear(5, 7), nn.GELU(), nn.Linear(7, 3)), torch.randn(4, 5)
    fused = fuse(model, x) if ahead else fuse(model)
    for mode in (torch.inference_mode, torch.no_grad, torch.inference_mode, torch.no_grad):
        with mode():
            close(fused(x).clone(), model(x).clone())


def test_inference_mode_and_back(no_fallback):
    model, x = nn.Linear(5, 3), torch.randn(4, 5)
    for fused in (fuse(model), fuse(model, x)):
        with torch.inference_mode():
            close(fused(x), model(x))
            assert fused(x).is_inference()
        fused(x).sum().backward()
        assert model.weight.grad is not None


# -- the module after fuse


def small():
    return nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 2))


@pytest.mark.parametrize("ahead", [False, True], ids=["first call", "ahead of time"])
def test_state_is_live(ahead, no_fallback):
    model, x = small(), torch.randn(3, 5)
    fused = fuse(model, x) if ahead else fuse(model)
    with torch.no_grad():
        close(fused(x), model(x))
        fused.load_state_dict({k: v + 1 for k, v in model.state_dict().items()})
        close(fused(x), model(x))
        model[0].weight = nn.Parameter(torch.randn(6, 5))
        close(fused(x), model(x))
        model[0].weight.data = torch.randn(6, 5)
        close(fused(x), model(x))
        model[0].bias = None
        close(fused(x), model(x))
        model[0].bias = nn.Parameter(torch.randn(6))
        close(fused(x), model(x))
        for dtype, tolerance in ((torch.bfloat16, 2e-2), (torch.float64, 1e-12)):
            fused.to(dtype)
            close(fused(x.to(dtype)), model(x.to(dtype)), tolerance)


def test_copies_and_files(no_fallback):
    model, x = small(), torch.randn(3, 5)
    fused = fuse(model)
    expected = fused(x)
    other = copy.deepcopy(fused)
    with torch.no_grad():
        other[0].weight.zero_()
    assert not torch.equal(other(x), expected)
    close(fused(x), expected)
    close(pickle.loads(pickle.dumps(fused))(x), expected)
    file = io.BytesIO()
    torch.save(fused.state_dict(), file)
    file.seek(0)
    plain = small()
    plain.load_state_dict(torch.load(file))
    close(plain(x), expected)


def test_hooks(no_fallback):
    model, x = small(), torch.randn(3, 5)
    model.register_forward_pre_hook(lambda module, args: (args[0] * 2,))
    model[1].register_forward_hook(lambda module, args, result: result + 1)
    model[0].weight.register_hook(lambda grad: grad * 2)
    same(model, x)
    fused = fuse(model)
    handle = model.register_forward_hook(lambda module, args, result: result * 0)
    assert (fused(x) == 0).all()
    handle.remove()
    close(fused(x), model(x))


def test_functional_transforms(no_fallback):
    model, x = small(), torch.randn(3, 5)
    parameters, fused = dict(model.named_parameters()), fuse(model)

    def loss(call, parameters, x):
        return torch.func.functional_call(call, parameters, (x,)).square().sum()

    grad = torch.func.grad(lambda p, x: loss(model, p, x))
    each = torch.func.vmap(grad, (None, 0))
    close(fuse(grad)(parameters, x), grad(parameters, x))
    close(fuse(each)(parameters, x), each(parameters, x))
    close(torch.func.grad(lambda p: loss(fused, p, x))(parameters), grad(parameters, x))
    close(torch.func.vmap(fused)(x), model(x))
    close(torch.func.jacrev(fused)(x[0]), torch.func.jacrev(model)(x[0]))


def test_keywords_and_nested_outputs_ahead_of_time(no_fallback):
    model, x, mask = Structured(), torch.randn(4, 5), torch.rand(4, 3) > 0.5
    fused = fuse(model, ((x,), {"scale": 2.0, "mask": mask}))
    calls = [{"scale": 2.0, "mask": mask}, {}, {"scale": 3.0}]
    with torch.no_grad():
        for kwargs in calls:
            found, expected = fused(x, **kwargs), model(x, **kwargs)
            assert (found["count"], found["none"]) == (3, None)
            close([found["y"], found["parts"]], [expected["y"], expected["parts"]])
        close(fused(x=x, mask=mask)["y"], model(x=x, mask=mask)["y"])
        close(fused(torch.ones(7, 5))["y"], model(torch.ones(7, 5))["y"])
    fused(x)["y"].sum().backward()


@pytest.mark.parametrize("how", ["first call", "ahead of time", "dynamic"])
def test_batches_of_many_sizes(how, no_fallback):
    model = nn.Sequential(nn.Linear(5, 8), nn.LayerNorm(8), nn.Softmax(-1))
    example = (torch.randn(4, 5),) if how == "ahead of time" else ()
    fused = fuse(model, *example, dynamic=True if how == "dynamic" else None)
    for n in (4, 1, 0, 33, 5):
        x = torch.randn(n, 5)
        with torch.no_grad():
            close(fused(x), model(x))
        fused(x).sum().backward()
