import torch
import torch.nn as nn
import torch.nn.functional as F


class Codebook(nn.Module):
    def __init__(self, n_codes, dim):
        super().__init__()
        self.embed = nn.Parameter(torch.randn(n_codes, dim))

    def forward(self, z):
        flat = z.reshape(-1, z.shape[-1])
        d = flat.pow(2).sum(1, keepdim=True) - 2 * flat @ self.embed.t() + self.embed.pow(2).sum(1)
        idx = torch.argmin(d.detach(), dim=1)
        q = F.embedding(idx, self.embed).view_as(z)
        probs = torch.softmax(-d / 10.0, dim=-1)
        avg = probs.mean(0)
        ent_penalty = (avg * torch.log(avg + 1e-9)).sum() - (probs * torch.log(probs + 1e-9)).sum(-1).mean()
        return q, idx.view(z.shape[:-1]), ent_penalty


class Model(nn.Module):
    """Residual vector quantiser for audio tokens: conv encoder/decoder, commitment, codebook and diversity losses."""

    def __init__(self, channels, dim, n_codes, n_q, beta):
        super().__init__()
        self.enc = nn.Sequential(
            nn.Conv1d(1, channels, 7, stride=4, padding=3), nn.ELU(),
            nn.Conv1d(channels, dim, 7, stride=4, padding=3),
        )
        self.dec = nn.Sequential(
            nn.ConvTranspose1d(dim, channels, 8, stride=4, padding=2), nn.ELU(),
            nn.ConvTranspose1d(channels, 1, 8, stride=4, padding=2),
        )
        self.books = nn.ModuleList(Codebook(n_codes, dim) for _ in range(n_q))
        self.beta = beta

    def forward(self, wav):
        z = self.enc(wav).transpose(1, 2)
        residual, quantized = z, torch.zeros_like(z)
        commit = codebook = ent = 0.0
        codes = []
        for book in self.books:
            q, idx, e = book(residual)
            commit = commit + F.mse_loss(residual, q.detach())
            codebook = codebook + F.mse_loss(q, residual.detach())
            ent = ent + e
            q = residual + (q - residual).detach()
            residual = residual - q.detach()
            quantized = quantized + q
            codes.append(idx)
        recon = self.dec(quantized.transpose(1, 2))
        rec = F.l1_loss(recon, wav) + F.smooth_l1_loss(recon[..., 1:] - recon[..., :-1], wav[..., 1:] - wav[..., :-1])
        loss = rec + codebook + self.beta * commit + 0.01 * ent
        return loss, torch.stack(codes, 1)


def get_inputs():
    return [torch.randn(3, 1, 1472)]


def get_init_inputs():
    return [24, 40, 200, 3, 0.25]
