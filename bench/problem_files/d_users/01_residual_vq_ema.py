import torch
import torch.nn as nn
import torch.nn.functional as F


class EMACodebook(nn.Module):
    def __init__(self, num_codes, dim, decay=0.97, eps=1e-5):
        super().__init__()
        self.num_codes, self.dim, self.decay, self.eps = num_codes, dim, decay, eps
        embed = torch.randn(num_codes, dim) * 0.7
        self.register_buffer("embed", embed)
        self.register_buffer("embed_avg", embed.clone())
        self.register_buffer("cluster_size", torch.ones(num_codes))
        self.register_buffer("usage", torch.zeros(num_codes, dtype=torch.long))
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))

    @torch.no_grad()
    def _ema_update(self, flat, idx):
        onehot = F.one_hot(idx, self.num_codes).to(flat.dtype)
        self.cluster_size.mul_(self.decay).add_(onehot.sum(0), alpha=1 - self.decay)
        self.embed_avg.lerp_(onehot.t() @ flat, 1 - self.decay)
        total = self.cluster_size.sum()
        smoothed = (self.cluster_size + self.eps) / (total + self.num_codes * self.eps) * total
        self.embed.copy_(self.embed_avg / smoothed.unsqueeze(1))
        self.usage.scatter_add_(0, idx, torch.ones_like(idx))
        self.steps += 1

    def forward(self, x, update=True):
        shape = x.shape
        flat = x.reshape(-1, self.dim)
        with torch.no_grad():
            d = (flat.pow(2).sum(1, keepdim=True)
                 - 2 * flat @ self.embed.t()
                 + self.embed.pow(2).sum(1)[None])
            idx = d.argmin(dim=1)
        q = F.embedding(idx, self.embed).view(shape)
        if update and self.training:
            self._ema_update(flat.detach(), idx)
        # perplexity is taken over the *updated* cluster sizes
        p = self.cluster_size / self.cluster_size.sum()
        perplexity = torch.exp(-(p * (p + 1e-10).log()).sum())
        commit = F.mse_loss(x, q.detach())
        q_st = x + (q - x).detach()
        return q_st, idx.view(shape[:-1]), commit, perplexity


class Model(nn.Module):
    """Residual vector quantiser: straight-through estimator and EMA codebooks updated in forward."""

    def __init__(self, channels, dim, num_codes, depth):
        super().__init__()
        self.enc = nn.Sequential(
            nn.Conv1d(channels, dim, 5, stride=2, padding=2), nn.ELU(),
            nn.Conv1d(dim, dim, 3, stride=2, padding=1))
        self.books = nn.ModuleList(EMACodebook(num_codes, dim) for _ in range(depth))
        self.log_scales = nn.ParameterList(
            [nn.Parameter(torch.tensor(-0.3 * i)) for i in range(depth)])
        self.dec = nn.Sequential(
            nn.ConvTranspose1d(dim, dim, 4, stride=2, padding=1), nn.ELU(),
            nn.ConvTranspose1d(dim, channels, 4, stride=2, padding=1))
        self.beta = 0.25

    def forward(self, x, n_levels=None):
        z = self.enc(x).transpose(1, 2)
        residual, total = z, torch.zeros_like(z)
        codes, losses, perps = [], [], []
        for level, (book, ls) in enumerate(zip(self.books, self.log_scales)):
            if n_levels is not None and level >= n_levels:
                break
            s = ls.exp()
            q, idx, commit, perp = book(residual / s)
            q = q * s
            residual = residual - q.detach()
            total = total + q
            codes.append(idx)
            losses.append(commit)
            perps.append(perp)
        y = self.dec(total.transpose(1, 2))
        loss = F.l1_loss(y, x) + self.beta * sum(losses)
        return {
            "recon": y,
            "codes": torch.stack(codes, dim=-1),
            "loss": loss,
            "perplexity": torch.stack(perps),
            "latent_view": total.transpose(1, 2),
        }


def get_inputs():
    return [torch.randn(8, 8, 1024)]


def get_init_inputs():
    return [8, 32, 64, 3]
