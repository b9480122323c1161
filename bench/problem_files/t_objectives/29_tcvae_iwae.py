import math
import torch
import torch.nn as nn
import torch.nn.functional as F


def log_normal(x, mu, logvar):
    return -0.5 * (math.log(2 * math.pi) + logvar + (x - mu) ** 2 * torch.exp(-logvar))


class Model(nn.Module):
    """beta-TCVAE decomposition (minibatch weighted sampling) and a K-sample IWAE bound; noise is an input."""

    def __init__(self, zdim, ch, n_data, alpha, beta, gamma):
        super().__init__()
        self.zdim, self.n_data = zdim, n_data
        self.alpha, self.beta, self.gamma = alpha, beta, gamma
        self.enc = nn.Sequential(
            nn.Conv2d(1, ch, 4, 2, 1), nn.ReLU(),
            nn.Conv2d(ch, ch * 2, 4, 2, 1), nn.ReLU(),
            nn.Flatten(), nn.Linear(ch * 2 * 49, 2 * zdim),
        )
        self.dec_fc = nn.Linear(zdim, ch * 2 * 49)
        self.dec = nn.Sequential(
            nn.ReLU(), nn.Unflatten(1, (ch * 2, 7, 7)),
            nn.ConvTranspose2d(ch * 2, ch, 4, 2, 1), nn.ReLU(),
            nn.ConvTranspose2d(ch, 1, 4, 2, 1),
        )

    def forward(self, x, eps):
        K, B = eps.shape[:2]
        mu, logvar = self.enc(x).chunk(2, dim=1)
        z = mu + torch.exp(0.5 * logvar) * eps
        rec = self.dec(self.dec_fc(z.flatten(0, 1))).view(K, B, *x.shape[1:])
        bce = F.binary_cross_entropy_with_logits(rec, x.expand_as(rec), reduction="none")
        log_px = -bce.flatten(2).sum(-1)

        log_qz_x = log_normal(z, mu, logvar).sum(-1)
        log_pz = log_normal(z, torch.zeros_like(z), torch.zeros_like(z)).sum(-1)
        iwae = torch.logsumexp(log_px + log_pz - log_qz_x, dim=0) - math.log(K)

        z0 = z[0]
        mat = log_normal(z0.view(B, 1, -1), mu.view(1, B, -1), logvar.view(1, B, -1))
        log_norm = math.log(B * self.n_data)
        log_qz = torch.logsumexp(mat.sum(2), dim=1) - log_norm
        log_prod_qz = (torch.logsumexp(mat, dim=1) - log_norm).sum(1)
        mi = (log_qz_x[0] - log_qz).mean()
        tc = (log_qz - log_prod_qz).mean()
        dwkl = (log_prod_qz - log_pz[0]).mean()
        elbo_tc = log_px[0].mean() - self.alpha * mi - self.beta * tc - self.gamma * dwkl
        kld = -0.5 * (1 + logvar - mu.pow(2) - logvar.exp()).sum(1)
        free_bits = torch.clamp(kld / self.zdim, min=0.05).mean()
        return (-elbo_tc - 0.5 * iwae.mean()) / x[0].numel() + free_bits


def get_inputs():
    return [torch.rand(26, 1, 28, 28), torch.randn(3, 26, 10)]


def get_init_inputs():
    return [10, 12, 5000, 1.0, 6.0, 1.0]
