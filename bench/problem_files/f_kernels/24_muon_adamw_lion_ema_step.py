import torch
import torch.nn as nn


def newton_schulz(g, steps):
    a, b, c = 3.4445, -4.7750, 2.0315
    x = g.to(torch.bfloat16)
    flip = x.shape[-2] > x.shape[-1]
    if flip:
        x = x.mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) * 1.02 + 1e-6)
    for _ in range(steps):
        s = x @ x.mT
        p = b * s + c * (s @ s)
        x = a * x + p @ x
    return x.mT if flip else x


class Model(nn.Module):
    def __init__(self, lr, warmup, total, weight_decay, clip, steps):
        super().__init__()
        self.lr, self.warmup, self.total, self.wd, self.clip, self.steps = lr, warmup, total, weight_decay, clip, steps
        self.log_gain = nn.Parameter(0.05 * torch.randn(4))

    def forward(self, mats, mat_grad, mat_mom, vec, vec_grad, m, v, emb, emb_grad, emb_mom, ema, step):
        t = step.to(torch.float32)
        warm = (t / self.warmup).clamp(max=1.0)
        done = ((t - self.warmup) / (self.total - self.warmup)).clamp(0.0, 1.0)
        lr = self.lr * warm * (0.1 + 0.45 * (1 + torch.cos(torch.pi * done)))
        gain = self.log_gain.exp()
        norm = torch.sqrt(mat_grad.square().sum() + vec_grad.square().sum() + emb_grad.square().sum())
        scale = (self.clip / (norm + 1e-6)).clamp(max=1.0)
        mat_grad, vec_grad, emb_grad = mat_grad * scale, vec_grad * scale, emb_grad * scale

        mat_mom = torch.lerp(mat_mom, mat_grad, 0.05)
        upd = newton_schulz(torch.lerp(mat_grad, mat_mom, 0.95), self.steps).float()
        rows, cols = mats.shape[-2:]
        mats = mats * (1 - lr * self.wd) - lr * gain[0] * max(1.0, rows / cols) ** 0.5 * upd

        m = 0.9 * m + 0.1 * vec_grad
        v = 0.95 * v + 0.05 * vec_grad * vec_grad
        mh, vh = m / (1 - 0.9 ** t), v / (1 - 0.95 ** t)
        direction = mh / (vh.sqrt() + 1e-8)
        cautious = (direction * vec_grad > 0).to(vec.dtype)
        cautious = cautious / cautious.mean().clamp_min(1e-3)
        vec = vec * (1 - lr * self.wd) - lr * gain[1] * direction * cautious

        look = torch.sign(0.9 * emb_mom + 0.1 * emb_grad)
        emb_mom = emb_mom.mul(0.99).add(emb_grad, alpha=0.01)
        touched = (emb_grad != 0).any(-1, keepdim=True)
        trust = emb.norm(dim=-1, keepdim=True) / (look.norm(dim=-1, keepdim=True) + 1e-6)
        emb = torch.where(touched, emb - lr * gain[2] * (trust * look + self.wd * emb), emb)

        decay = torch.minimum(torch.tensor(0.999, device=t.device), (1 + t) / (10 + t))
        ema = ema * decay + (1 - decay) * emb
        return mats, mat_mom, vec, m, v, emb, emb_mom, ema, torch.stack((lr, norm, scale, upd.square().mean().sqrt() * gain[3]))


def get_inputs():
    emb_grad = torch.randn(701, 59) * (torch.rand(701, 1) < 0.6)
    emb = torch.randn(701, 59)
    return [torch.randn(3, 149, 83), torch.randn(3, 83, 149).mT, 0.1 * torch.randn(3, 149, 83), torch.randn(5003), torch.randn(5003),
            0.1 * torch.randn(5003), 0.1 * torch.rand(5003), emb, emb_grad, 0.1 * torch.randn(701, 59), emb + 0.1 * torch.randn(701, 59), torch.tensor(137)]


def get_init_inputs():
    return [0.02, 100, 1000, 0.1, 1.0, 5]
