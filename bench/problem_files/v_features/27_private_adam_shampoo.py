import torch
import torch.nn as nn
from torch.func import functional_call, grad, vmap


class Small(nn.Module):
    def __init__(self, din, hidden, dout):
        super().__init__()
        self.embed = nn.Embedding(29, din)
        self.body = nn.Sequential(nn.Linear(2 * din, hidden), nn.SiLU(), nn.LayerNorm(hidden), nn.Linear(hidden, dout))

    def forward(self, x, token):
        return self.body(torch.cat([x, self.embed(token)], -1))


class Model(nn.Module):
    """A training step with privacy: gradients of each sample by vmap(grad(functional_call)),
    clipping over all parameters, given noise, then Adam for vectors and Shampoo for
    matrices, whose inverse fourth roots come from a coupled Newton iteration."""

    def __init__(self, din, hidden, dout, clip, sigma):
        super().__init__()
        self.net = Small(din, hidden, dout)
        self.clip, self.sigma = clip, sigma
        for name, p in self.net.named_parameters():
            key = name.replace(".", "_")
            self.register_buffer(key + "_m", 0.01 * torch.randn_like(p))
            self.register_buffer(key + "_v", 1e-4 * torch.rand_like(p))

    @staticmethod
    def inverse_fourth_root(a):
        n = a.shape[0]
        eye = torch.eye(n, dtype=a.dtype)
        z = 5.0 / (2.0 * torch.linalg.matrix_norm(a))
        x = z**0.25 * eye
        m = z * a
        for _ in range(7):
            t = (5.0 * eye - m) / 4.0
            x = x @ t
            m = torch.linalg.matrix_power(t, 4) @ m
        return x

    def loss(self, params, x, token, y):
        out = functional_call(self.net, params, (x.unsqueeze(0), token.unsqueeze(0)))
        return nn.functional.cross_entropy(out, y.unsqueeze(0), label_smoothing=0.05)

    def forward(self, x, token, y, noise, step):
        params = dict(self.net.named_parameters())
        each = vmap(grad(self.loss), in_dims=(None, 0, 0, 0))(params, x, token, y)
        n = x.shape[0]
        square = torch.stack([g.flatten(1).square().sum(1) for g in each.values()]).sum(0)
        norm = square.sqrt()
        scale = torch.clamp(self.clip / (norm + 1e-6), max=1.0)
        at = 0
        new, updates = [], []
        b1, b2 = 0.9, 0.99
        t = step.to(x.dtype) + 1
        for name, g in each.items():
            p = params[name]
            mean = torch.tensordot(scale, g, dims=([0], [0]))
            mean = (mean + self.sigma * self.clip * noise[at : at + p.numel()].view_as(p)) / n
            at += p.numel()
            key = name.replace(".", "_")
            m = torch.lerp(getattr(self, key + "_m"), mean, 1 - b1)
            v = torch.addcmul(b2 * getattr(self, key + "_v"), mean, mean, value=1 - b2)
            if p.dim() == 2 and min(p.shape) > 8:
                left = mean @ mean.mT + 1e-3 * torch.eye(p.shape[0], dtype=p.dtype)
                right = mean.mT @ mean + 1e-3 * torch.eye(p.shape[1], dtype=p.dtype)
                up = torch.linalg.multi_dot([self.inverse_fourth_root(left), m, self.inverse_fourth_root(right)])
                up = up * (m.norm() / (up.norm() + 1e-8))  # grafting
            else:
                up = torch.addcdiv(torch.zeros_like(m), m / (1 - b1**t), (v / (1 - b2**t)).sqrt() + 1e-8)
            new.append(p * (1 - 1e-2 * 0.01) - 1e-2 * up)
            updates.append(torch.linalg.vector_norm(up))
        return new, norm, scale.lt(1).sum(), torch.stack(updates)


def get_inputs():
    b, din, hidden, dout = 37, 15, 43, 11
    total = 29 * din + 2 * din * hidden + hidden + 2 * hidden + hidden * dout + dout
    return [torch.randn(b, din), torch.randint(0, 29, (b,)), torch.randint(0, dout, (b,)), torch.randn(total), torch.tensor(3)]


def get_init_inputs():
    return [15, 43, 11, 1.0, 0.5]
