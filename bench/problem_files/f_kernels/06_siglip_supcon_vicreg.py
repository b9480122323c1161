import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, image_dim, text_dim, dim, temperature):
        super().__init__()
        self.image = nn.Sequential(nn.Linear(image_dim, dim), nn.GELU(), nn.LayerNorm(dim), nn.Linear(dim, dim, bias=False))
        self.text = nn.Linear(text_dim, dim)
        self.t_prime = nn.Parameter(torch.tensor(2.3026))
        self.b = nn.Parameter(torch.tensor(-3.0))
        self.temperature = temperature

    def siglip(self, a, b):
        logits = a @ b.T * self.t_prime.exp() + self.b
        sign = 2 * torch.eye(a.shape[0], device=a.device) - 1
        return -F.logsigmoid(sign * logits).sum(1).mean()

    def supcon(self, z, labels):
        n = z.shape[0]
        sim = z @ z.T / self.temperature
        self_mask = torch.eye(n, dtype=torch.bool, device=z.device)
        pos = (labels[:, None] == labels[None, :]) & ~self_mask
        sim = sim - sim.detach().amax(1, keepdim=True)
        log_den = sim.masked_fill(self_mask, float("-inf")).logsumexp(1, keepdim=True)
        count = pos.sum(1)
        per = -((sim - log_den) * pos).sum(1) / count.clamp_min(1)
        keep = (count > 0).to(z.dtype)
        return (per * keep).sum() / keep.sum().clamp_min(1)

    def vicreg(self, x, y):
        n, d = x.shape
        inv = F.mse_loss(x, y)
        total = 25.0 * inv
        for m in (x, y):
            c = m - m.mean(0)
            std = torch.sqrt(c.var(0) + 1e-4)
            cov = c.T @ c / (n - 1)
            off = cov.square().sum() - cov.diagonal().square().sum()
            total = total + 25.0 * F.relu(1 - std).mean() + off / d
        return total

    def forward(self, image, text, labels):
        x, y = self.image(image), self.text(text)
        zx, zy = F.normalize(x, dim=-1), F.normalize(y, dim=-1)
        sup = self.supcon(torch.cat((zx, zy)), torch.cat((labels, labels)))
        xs, ys = (x - x.mean(0)) / x.std(0), (y - y.mean(0)) / y.std(0)
        c = xs.T @ ys / x.shape[0]
        eye = torch.eye(c.shape[0], device=c.device)
        barlow = ((c - eye).square() * torch.where(eye > 0, 1.0, 0.005)).sum()
        sq = torch.cdist(zx, zx).square()
        uniform = torch.exp(-2 * sq).mean().log()
        return self.siglip(zx, zy), sup, self.vicreg(x, y), barlow, uniform


def get_inputs():
    return [torch.randn(383, 151), torch.randn(383, 97), torch.randint(0, 41, (383,))]


def get_init_inputs():
    return [151, 97, 131, 0.1]
