"""torchweld.nn, and transformers' modules replaced by torchweld's operators."""

from __future__ import annotations

import copy
import pickle
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import torchweld
from doc_examples import run, sections
from torchweld import nn as ours
from torchweld.core.errors import UsageError
from torchweld.integrations import transformers as welded

PAGE = "operators.md"


@pytest.fixture(autouse=True)
def one_thread():
    torch.compiler.reset()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("title", [t for t, blocks in sections(PAGE).items() if blocks])
def test_the_page_works(title):
    if "transformers" in title:
        pytest.importorskip("transformers")
    assert run(PAGE, title)


def test_norms():
    x = torch.randn(2, 3, 21)
    norm = ours.LigerRMSNorm(21, eps=1e-5, init_fn="zeros", offset=1.0, casting_mode="gemma")
    torch.testing.assert_close(norm(x), F.rms_norm(x, (21,), eps=1e-5))
    assert list(norm.state_dict()) == ["weight"]
    bare = ours.LigerRMSNorm(21, elementwise_affine=False)
    assert bare.weight is None and not bare.state_dict()
    torch.testing.assert_close(bare(x), F.rms_norm(x, (21,), eps=1e-6))
    layer = ours.LigerLayerNorm(21, bias=True)
    torch.testing.assert_close(layer(x), F.layer_norm(x, (21,), eps=1e-6))
    assert layer.bias.requires_grad and not ours.LigerLayerNorm(21).bias.requires_grad
    with pytest.raises(UsageError, match="init_fn"):
        ours.LigerRMSNorm(21, init_fn="one")


@pytest.mark.parametrize("train", [False, True])
def test_gated_mlps(train):
    x = torch.randn(2, 3, 8, requires_grad=train)
    for kind, act in ((ours.LigerSwiGLUMLP, "silu"), (ours.LigerGEGLUMLP, "gelu_pytorch_tanh")):
        config = SimpleNamespace(hidden_size=8, intermediate_size=12, hidden_act=act)
        mlp = kind(config).requires_grad_(train)
        bend = F.silu if act == "silu" else lambda t: F.gelu(t, approximate="tanh")
        expected = mlp.down_proj(bend(mlp.gate_proj(x)) * mlp.up_proj(x))
        torch.testing.assert_close(mlp(x), expected)
    with pytest.raises(UsageError, match="gated_mlp"):
        ours.LigerSwiGLUMLP(SimpleNamespace(hidden_size=8, intermediate_size=12, hidden_act="relu"))


def test_losses():
    x, weight = torch.randn(6, 8), torch.randn(11, 8)
    labels = torch.tensor([1, -100, 3, 10, 0, 5])
    logits = F.linear(x, weight)
    smooth = ours.LigerCrossEntropyLoss(label_smoothing=0.1, reduction="none")
    expected = F.cross_entropy(logits, labels, label_smoothing=0.1, reduction="none")
    torch.testing.assert_close(smooth(logits, labels), expected)
    loss, z = ours.LigerCrossEntropyLoss(lse_square_scale=0.1, return_z_loss=True)(logits, labels)
    right = 0.1 * logits.logsumexp(-1)[labels != -100].square().mean()
    torch.testing.assert_close(z, right)
    torch.testing.assert_close(loss, F.cross_entropy(logits, labels) + right)
    fused = ours.LigerFusedLinearCrossEntropyLoss(accum_dtype=torch.float32)
    torch.testing.assert_close(fused(weight, x, labels), F.cross_entropy(logits, labels))
    with pytest.raises(UsageError, match="return_z_loss"):
        ours.LigerFusedLinearCrossEntropyLoss(return_z_loss=True)


def test_rotary():
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    q, k, angles = torch.randn(2, 4, 5, 8), torch.randn(2, 2, 5, 8), torch.randn(2, 5, 8)
    found = ours.liger_rotary_pos_emb(q, k, angles.cos(), angles.sin())
    torch.testing.assert_close(found, apply_rotary_pos_emb(q, k, angles.cos(), angles.sin()))


def tiny(kind: str):
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1,
             "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 31,
             "max_position_embeddings": 16}  # fmt: skip
    if kind == "GPT2":
        config = transformers.GPT2Config(n_layer=1, n_embd=16, n_head=2, vocab_size=31,
                                         resid_pdrop=0, embd_pdrop=0, attn_pdrop=0)  # fmt: skip
        return transformers.GPT2LMHeadModel(config)
    extra = {"Gemma2": {"head_dim": 8}, "Phi3": {"pad_token_id": 0}}.get(kind, {})
    config = getattr(transformers, f"{kind}Config")(**sizes, **extra)
    return getattr(transformers, f"{kind}ForCausalLM")(config)


def trained(model):
    ids = torch.arange(14).view(2, 7)
    model.zero_grad()
    loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    return {"loss": loss.detach(), **{n: p.grad for n, p in model.named_parameters()}}


MODELS = {
    "Llama": {"rms_norm, eps 1e-06, offset 0.0, llama": 3, "gated_mlp, silu": 1},
    "Gemma2": {"rms_norm, eps 1e-06, offset 1.0, gemma": 5, "gated_mlp, gelu_tanh": 1},
    "Phi3": {"rms_norm, eps 1e-05, offset 0.0, llama": 3, "packed gated_mlp, silu": 1},
    "GPT2": {"layer_norm, eps 1e-05": 3},
}


@pytest.mark.parametrize("kind", MODELS)
def test_models_are_replaced_by_structure(kind):
    model = tiny(kind)
    names, before = list(model.state_dict()), trained(model)
    random = torch.get_rng_state()
    applied = welded.apply(model)
    assert torch.equal(random, torch.get_rng_state())
    counted = {}
    for made in applied.replaced:
        counted[made.operator] = counted.get(made.operator, 0) + 1
    assert counted == MODELS[kind], str(applied)
    assert list(model.state_dict()) == names and not applied.refused
    after = trained(model)
    for name, right in before.items():
        torch.testing.assert_close(after[name], right, rtol=1e-4, atol=1e-6, msg=name)
    copied = copy.deepcopy(model)
    assert [type(m) for m in copied.modules()] == [type(m) for m in model.modules()]
    assert len(pickle.loads(pickle.dumps(model)).state_dict()) == len(names)
    assert not welded.apply(model).replaced  # they are ours already
    applied.undo()
    assert not any(isinstance(m, welded._Ours) for m in model.modules())
    assert torch.equal(trained(model)["loss"], before["loss"])


def test_applied_and_fused():
    model = tiny("Llama").eval()
    ids = torch.arange(14).view(2, 7)
    with torch.no_grad():
        right = model(ids).logits
        welded.apply(model)
        whole = torch.compile(model, backend="eager", fullgraph=True)
        torch.testing.assert_close(whole(ids).logits, right, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(torchweld.fuse(model)(ids).logits, right, rtol=1e-4, atol=1e-5)


class Halved(nn.Module):
    """Looks like a norm and a gated MLP, and is none."""

    def __init__(self, parts):
        super().__init__()
        self.eps = 1e-6
        if parts:
            self.a, self.b = nn.Linear(4, 6), nn.Linear(4, 6)
            self.c = nn.Linear(6, 4)
        else:
            self.weight = nn.Parameter(torch.ones(4))

    def forward(self, x):
        if hasattr(self, "a"):
            return self.c(F.silu(self.a(x)) + self.b(x))
        return x / x.abs().mean(-1, keepdim=True) * self.weight


class Detached(nn.Module):
    """Right in value, another in its gradient."""

    def __init__(self):
        super().__init__()
        self.eps, self.weight = 1e-6, nn.Parameter(torch.ones(4))

    def forward(self, x):
        rms = (x.square().mean(-1, keepdim=True) + self.eps).sqrt()
        return self.weight * (x / rms.detach())


class Gated(Detached):
    def forward(self, x, gate=None):
        return F.rms_norm(x, (4,), self.weight, self.eps)


class Masked(nn.Module):
    """A norm, but not while it is trained."""

    def __init__(self):
        super().__init__()
        self.eps, self.weight = 1e-6, nn.Parameter(torch.ones(4))

    def forward(self, x):
        return F.rms_norm(x * 2 if self.training else x, (4,), self.weight, self.eps) + (
            1 if self.training else 0)


@pytest.mark.parametrize("module, reason", [
    (Halved(False), "something else"), (Halved(True), "something else"),
    (Detached(), "something else"), (Masked(), "something else"),
    (Gated(), "more than one argument"), (nn.LayerNorm(4, device="meta"), "meta device"),
], ids=lambda x: type(x).__name__ if isinstance(x, nn.Module) else "")  # fmt: skip
def test_what_computes_something_else_is_left(module, reason):
    model = nn.Sequential(module, nn.Linear(4, 4))
    applied = welded.apply(model)
    assert not applied.replaced and reason in dict(applied.refused)["0"]
    assert type(model[0]) is type(module) and module.training


def test_hooks_stay_and_are_not_called():
    seen, norm = [], nn.LayerNorm(4)
    norm.register_forward_hook(lambda *given: seen.append(1))
    model = nn.Sequential(norm)
    assert len(welded.apply(model).replaced) == 1 and not seen
    model(torch.randn(2, 4))
    assert seen == [1]


def test_a_module_with_a_forward_of_its_own_is_left():
    norm = nn.LayerNorm(4)
    norm.forward = lambda x: x
    assert "of its own" in dict(welded.apply(nn.Sequential(norm)).refused)["0"]
