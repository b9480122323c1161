import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, dim, vocab, chunk, smoothing, z_weight, cap):
        super().__init__()
        self.chunk, self.smoothing, self.z_weight, self.cap = chunk, smoothing, z_weight, cap
        self.norm = nn.Parameter(1 + 0.1 * torch.randn(dim))
        self.head = nn.Parameter((torch.randn(vocab, dim) * 2 * dim ** -0.5).to(torch.bfloat16))
        self.depth_proj = nn.Parameter((torch.randn(dim, dim) * dim ** -0.5).to(torch.bfloat16))

    def rms(self, h):
        f = h.float()
        return (f * torch.rsqrt(f.pow(2).mean(-1, keepdim=True) + 1e-6) * self.norm).to(h.dtype)

    def run(self, hidden, target):
        loss = hidden.new_zeros((), dtype=torch.float32)
        z = torch.zeros_like(loss)
        tokens = []
        for h, t in zip(hidden.split(self.chunk), target.split(self.chunk)):
            logits = (self.rms(h) @ self.head.T).float()
            logits = self.cap * torch.tanh(logits / self.cap)
            valid = t != -100
            lse = logits.logsumexp(-1)
            picked = logits.gather(1, t.clamp_min(0).unsqueeze(1)).squeeze(1)
            nll = lse - picked
            smooth = lse - logits.mean(-1)
            tok = (1 - self.smoothing) * nll + self.smoothing * smooth
            loss = loss + torch.where(valid, tok, 0.0).sum()
            z = z + torch.where(valid, lse.square(), 0.0).sum()
            tokens.append(torch.where(valid, nll, 0.0))
        count = (target != -100).sum().clamp_min(1)
        return loss / count, z / count, torch.cat(tokens)

    def forward(self, hidden, target):
        l0, z0, tok0 = self.run(hidden[:-1], target[1:])
        deeper = hidden[:-2] + F.silu(hidden[1:-1] @ self.depth_proj)
        l1, z1, tok1 = self.run(deeper, target[2:])
        total = l0 + 0.3 * l1 + self.z_weight * (z0 + 0.3 * z1)
        return total, tok0, tok1, tok0.mean().exp()


def get_inputs():
    target = torch.randint(0, 2503, (509,))
    target = torch.where(torch.rand(509) < 0.15, torch.full_like(target, -100), target)
    return [torch.randn(509, 80).to(torch.bfloat16), target]


def get_init_inputs():
    return [80, 2503, 128, 0.1, 1e-3, 15.0]
