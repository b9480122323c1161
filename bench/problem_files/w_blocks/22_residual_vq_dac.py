import torch
import torch.nn as nn
import torch.nn.functional as F


class VectorQuantize(nn.Module):
    """Factorised, l2-normalised codes with a straight-through estimator (Descript audio codec)."""

    def __init__(self, input_dim: int, codebook_size: int, codebook_dim: int):
        super().__init__()
        self.in_proj = nn.Conv1d(input_dim, codebook_dim, kernel_size=1)
        self.out_proj = nn.Conv1d(codebook_dim, input_dim, kernel_size=1)
        self.codebook = nn.Embedding(codebook_size, codebook_dim)

    def embed_code(self, idx):
        return F.embedding(idx, self.codebook.weight)

    def decode_code(self, idx):
        return self.embed_code(idx).transpose(1, 2)

    def decode_latents(self, latents):
        b, d, t = latents.shape
        encodings = latents.permute(0, 2, 1).reshape(b * t, d).float()
        codebook = self.codebook.weight.float()
        encodings = F.normalize(encodings)
        codebook = F.normalize(codebook)
        dist = (
            encodings.pow(2).sum(1, keepdim=True)
            - 2 * encodings @ codebook.t()
            + codebook.pow(2).sum(1, keepdim=True).t()
        )
        indices = (-dist).max(1)[1].view(b, t)
        return self.decode_code(indices), indices

    def forward(self, z):
        z_e = self.in_proj(z)
        z_q, indices = self.decode_latents(z_e)
        commitment = F.mse_loss(z_e.float(), z_q.detach().float(), reduction="none").mean([1, 2])
        codebook = F.mse_loss(z_q.float(), z_e.detach().float(), reduction="none").mean([1, 2])
        z_q = z_e + (z_q - z_e).detach()
        return self.out_proj(z_q), commitment, codebook, indices, z_e


class ResidualUnit(nn.Module):
    def __init__(self, dim, dilation):
        super().__init__()
        pad = (7 - 1) * dilation // 2
        self.alpha1 = nn.Parameter(torch.ones(1, dim, 1))
        self.alpha2 = nn.Parameter(torch.ones(1, dim, 1))
        self.conv1 = nn.Conv1d(dim, dim, 7, dilation=dilation, padding=pad)
        self.conv2 = nn.Conv1d(dim, dim, 1)

    @staticmethod
    def snake(x, alpha):
        shape = x.shape
        x = x.reshape(shape[0], shape[1], -1)
        x = x + (alpha + 1e-9).reciprocal() * torch.sin(alpha * x).pow(2)
        return x.reshape(shape)

    def forward(self, x):
        y = self.conv2(self.snake(self.conv1(self.snake(x, self.alpha1)), self.alpha2))
        pad = (x.shape[-1] - y.shape[-1]) // 2
        if pad > 0:
            x = x[..., pad:-pad]
        return x + y


class Model(nn.Module):
    """Last residual unit of the encoder, the residual quantiser stack, first unit of the decoder."""

    def __init__(self, dim, n_codebooks, codebook_size, codebook_dim):
        super().__init__()
        self.enc = ResidualUnit(dim, 3)
        self.dec = ResidualUnit(dim, 1)
        self.quantizers = nn.ModuleList([VectorQuantize(dim, codebook_size, codebook_dim) for _ in range(n_codebooks)])

    def forward(self, z, n_quantizers):
        # n_quantizers: (b,), how many codebooks each row keeps (quantiser dropout is decided by the loader)
        z = self.enc(z)
        z_q = 0
        residual = z
        commitment_loss = 0
        codebook_loss = 0
        codes, latents = [], []
        for i, quantizer in enumerate(self.quantizers):
            z_q_i, commit_i, cb_i, idx_i, z_e_i = quantizer(residual)
            mask = torch.full((z.shape[0],), i, device=z.device) < n_quantizers
            z_q = z_q + z_q_i * mask[:, None, None]
            residual = residual - z_q_i
            commitment_loss = commitment_loss + (commit_i * mask).mean()
            codebook_loss = codebook_loss + (cb_i * mask).mean()
            codes.append(idx_i)
            latents.append(z_e_i)
        codes = torch.stack(codes, dim=1)
        latents = torch.cat(latents, dim=1)
        return self.dec(z_q), codes, latents, commitment_loss, codebook_loss


def get_inputs():
    return [torch.randn(8, 1024, 860), torch.randint(1, 10, (8,))]


def get_init_inputs():
    return [1024, 9, 1024, 8]
