import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """VQ-GAN quantiser (l2-normalised codes, low-dim projection), returns EMA statistics functionally."""

    def __init__(self, channels, code_dim, n_codes, decay=0.99, beta=0.25, eps=1e-5):
        super().__init__()
        self.n_codes, self.decay, self.beta, self.eps = n_codes, decay, beta, eps
        self.enc = nn.Sequential(
            nn.Conv2d(3, channels, 4, 2, 1), nn.SiLU(), nn.Conv2d(channels, channels, 3, 1, 1), nn.GroupNorm(4, channels))
        self.quant_conv = nn.Conv2d(channels, code_dim, 1)
        self.post_quant_conv = nn.Conv2d(code_dim, channels, 1)
        self.dec = nn.Sequential(
            nn.SiLU(), nn.ConvTranspose2d(channels, channels, 4, 2, 1), nn.SiLU(), nn.Conv2d(channels, 3, 3, 1, 1))
        embed = F.normalize(torch.randn(n_codes, code_dim), dim=-1)
        self.register_buffer("embed", embed)
        self.register_buffer("cluster_size", torch.ones(n_codes))
        self.register_buffer("embed_avg", embed.clone())

    def forward(self, img):
        z = self.quant_conv(self.enc(img))
        z = z.permute(0, 2, 3, 1).contiguous()
        z = F.normalize(z, p=2, dim=-1)
        flat = z.view(-1, z.shape[-1])
        d = (
            flat.pow(2).sum(1, keepdim=True)
            + self.embed.pow(2).sum(1)
            - 2 * torch.einsum("bd,nd->bn", flat, self.embed)
        )
        idx = torch.argmin(d, dim=1)
        z_q = F.embedding(idx, self.embed).view_as(z)

        with torch.no_grad():
            onehot = F.one_hot(idx, self.n_codes).type(flat.dtype)
            counts = onehot.sum(0)
            new_size = self.cluster_size * self.decay + counts * (1 - self.decay)
            dw = onehot.t() @ flat
            new_avg = torch.lerp(dw, self.embed_avg, self.decay)
            n = new_size.sum()
            smoothed = (new_size + self.eps) / (n + self.n_codes * self.eps) * n
            new_embed = F.normalize(new_avg / smoothed.unsqueeze(1), dim=-1)
            new_embed = torch.where(counts[:, None] > 0, new_embed, self.embed)
            avg_probs = onehot.mean(0)
            perplexity = torch.exp(-torch.sum(avg_probs * torch.log(avg_probs + 1e-10)))

        commit = self.beta * F.mse_loss(z, z_q.detach())
        # entropy term on soft assignments
        p = F.softmax(-d / 0.5, dim=-1)
        ent = -(p * torch.log(p + 1e-8)).sum(-1).mean()
        mean_p = p.mean(0)
        ent_marg = -(mean_p * torch.log(mean_p + 1e-8)).sum()
        loss = commit + 0.1 * (ent - ent_marg)

        z_q = z + (z_q - z).detach()
        rec = self.dec(self.post_quant_conv(z_q.permute(0, 3, 1, 2)))
        return rec, loss, idx.view(z.shape[:-1]), new_size, new_avg, new_embed, perplexity


def get_inputs():
    return [torch.rand(2, 3, 22, 22)]


def get_init_inputs():
    return [24, 8, 100]
