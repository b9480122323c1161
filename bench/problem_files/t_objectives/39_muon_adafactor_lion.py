import torch
import torch.nn as nn


def zeropower_via_newtonschulz5(G, steps):
    a, b, c = (3.4445, -4.7750, 2.0315)
    X = G / (G.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    transposed = G.size(-2) > G.size(-1)
    if transposed:
        X = X.mT
    for _ in range(steps):
        A = X @ X.mT
        B = b * A + c * A @ A
        X = a * X + B @ X
    return X.mT if transposed else X


class Model(nn.Module):
    """Mixed optimiser step: Muon for stacked attention matrices, Adafactor for the embedding, Lion for gains."""

    def __init__(self, lr, momentum, ns_steps, decay_rate, clip_threshold):
        super().__init__()
        self.lr, self.momentum, self.ns_steps = lr, momentum, ns_steps
        self.decay_rate, self.clip_threshold = decay_rate, clip_threshold

    def muon(self, w, g, buf):
        buf = buf * self.momentum + g
        update = g.lerp(buf, self.momentum)
        o = zeropower_via_newtonschulz5(update, self.ns_steps)
        scale = max(1.0, w.size(-2) / w.size(-1)) ** 0.5
        return w * (1 - self.lr * 0.1) - self.lr * scale * o, buf

    def adafactor(self, w, g, row, col, step):
        beta2t = 1.0 - torch.pow(step, self.decay_rate)
        sq = g.pow(2) + 1e-30
        row = row * beta2t + sq.mean(dim=-1) * (1.0 - beta2t)
        col = col * beta2t + sq.mean(dim=-2) * (1.0 - beta2t)
        r = (row / row.mean(dim=-1, keepdim=True)).rsqrt().unsqueeze(-1)
        c = col.unsqueeze(-2).rsqrt()
        u = g * r * c
        rms = u.norm(2) / u.numel() ** 0.5
        u = u / (rms / self.clip_threshold).clamp(min=1.0)
        w_rms = (w.norm(2) / w.numel() ** 0.5).clamp(min=1e-3)
        return w - self.lr * w_rms * u, row, col

    def lion(self, w, g, m, b1=0.9, b2=0.99):
        update = torch.sign(m * b1 + g * (1 - b1))
        w = w.mul(1 - self.lr * 0.01).add(update, alpha=-self.lr)
        return w, m * b2 + g * (1 - b2)

    def forward(self, qkvo, g_qkvo, buf, emb, g_emb, row, col, gain, g_gain, m_gain, step):
        q, buf = self.muon(qkvo, g_qkvo, buf)
        e, row, col = self.adafactor(emb, g_emb, row, col, step)
        n, m_gain = self.lion(gain, g_gain, m_gain)
        return q, buf, e, row, col, n, m_gain


def get_inputs():
    return [
        torch.randn(4, 120, 88) * 0.1, torch.randn(4, 120, 88), torch.randn(4, 120, 88),
        torch.randn(740, 88) * 0.5, torch.randn(740, 88), torch.rand(740) + 0.1, torch.rand(88) + 0.1,
        torch.ones(500), torch.randn(500), torch.randn(500), torch.tensor(12.0),
    ]


def get_init_inputs():
    return [0.02, 0.95, 5, -0.8, 1.0]
