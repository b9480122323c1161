import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils import parametrize
from torch.utils.checkpoint import checkpoint


class Symmetric(nn.Module):
    def forward(self, w):
        return w.triu() + w.triu(1).transpose(-1, -2)


class UnitRows(nn.Module):
    def forward(self, w):
        return w / (w.norm(dim=1, keepdim=True) + 1e-3)


class Model(nn.Module):
    """Vector-quantiser-like block: EMA buffers mutated in training, parametrizations, a forward hook, tied weights, checkpoint, no_grad."""

    def __init__(self, d, vocab):
        super().__init__()
        self.emb = nn.Embedding(vocab, d)
        self.mix = parametrize.register_parametrization(nn.Linear(d, d, bias=False), "weight", Symmetric())
        self.key = parametrize.register_parametrization(nn.Linear(d, 19), "weight", UnitRows())
        self.head = nn.Linear(d, vocab, bias=False)
        self.head.weight = self.emb.weight
        self.register_buffer("ema", torch.zeros(d))
        self.register_buffer("ema_sq", torch.ones(d))
        self.register_buffer("usage", torch.zeros(vocab, dtype=torch.long))
        self.register_buffer("steps", torch.tensor(0))
        self.mix.register_forward_hook(lambda mod, args, out: out * 0.5 + args[0])
        self.key.register_forward_pre_hook(lambda mod, args: (torch.tanh(args[0]),))

    @property
    def std(self):
        return (self.ema_sq - self.ema.square()).clamp(min=1e-2).sqrt()

    def block(self, h, *, scale):
        return h + scale * F.gelu(self.mix(h), approximate="tanh")

    def forward(self, tokens, noise):
        h = self.emb(tokens) + noise
        if self.training:
            with torch.no_grad():
                self.ema.lerp_(h.mean((0, 1)), 0.1)
                self.ema_sq.mul_(0.9).add_(h.square().mean((0, 1)), alpha=0.1)
                self.usage.index_add_(0, tokens.flatten(), torch.ones_like(tokens).flatten())
                self.steps += 1
        h = (h - self.ema) / self.std
        for i in range(3):
            h = checkpoint(self.block, h, scale=1 / (i + 1), use_reentrant=False)
        k = self.key(h)
        with torch.no_grad():
            target = F.softmax(k / 0.5, -1)
            target = target / target.sum((0, 1), keepdim=True)
            target = target / target.sum(-1, keepdim=True)
        consistency = -(target * F.log_softmax(k, -1)).sum(-1)
        logits = self.head(h)
        nll = F.cross_entropy(logits.flatten(0, 1), tokens.roll(-1, 1).flatten(), reduction="none", label_smoothing=0.1).view_as(tokens)
        return {"nll": nll, "aux": [consistency, None], "stats": {"ema": self.ema.clone(), "std": self.std, "usage": self.usage.clone(), "steps": self.steps + 0},
                "h": h.detach() * 1.0}


def get_inputs():
    return [torch.randint(0, 103, (7, 43)), torch.randn(7, 43, 29)]


def get_init_inputs():
    return [29, 103]
