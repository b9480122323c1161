import torch
import torch.nn as nn
import torch.nn.functional as F

B, CI, C, S, K, G = 16, 3, 120, 64, 64, 4


class Model(nn.Module):
    """VQ-VAE step with a grouped codebook: convolutional encoder, nearest codes, straight
    through estimator, codebook and commitment losses, transposed convolution decoder."""

    def __init__(self, in_ch, ch, codes, groups, commit):
        super().__init__()
        self.g, self.commit = groups, commit
        self.enc = nn.Sequential(
            nn.Conv2d(in_ch, ch // 2, 4, stride=2, padding=1), nn.GroupNorm(2, ch // 2), nn.ELU(),
            nn.Conv2d(ch // 2, ch, 4, stride=2, padding=1), nn.GroupNorm(4, ch))
        self.codebook = nn.Parameter(torch.randn(groups, codes, ch // groups))
        self.dec = nn.Sequential(
            nn.ConvTranspose2d(ch, ch // 2, 4, stride=2, padding=1), nn.GroupNorm(2, ch // 2), nn.SiLU(),
            nn.ConvTranspose2d(ch // 2, in_ch, 4, stride=2, padding=1))

    def forward(self, img):
        z = self.enc(img)
        b, c, h, w = z.shape
        flat = z.view(b, self.g, c // self.g, h * w).permute(1, 0, 3, 2).reshape(self.g, -1, c // self.g)
        d = (flat.square().sum(-1, keepdim=True) - 2 * flat @ self.codebook.mT
             + self.codebook.square().sum(-1).unsqueeze(1))
        idx = d.detach().argmin(dim=-1)
        q = torch.gather(self.codebook, 1, idx.unsqueeze(-1).expand(-1, -1, flat.shape[-1]))
        code_loss = F.mse_loss(q, flat.detach())
        commit = F.mse_loss(flat, q.detach())
        st = flat + (q - flat).detach()
        st = st.view(self.g, b, h * w, c // self.g).permute(1, 0, 3, 2).reshape(b, c, h, w)
        rec = self.dec(st)
        usage = F.softmax(-d * 0.1, dim=-1).mean(dim=1)
        diversity = (usage * (usage + 1e-5).log()).sum(-1).mean()
        loss = F.l1_loss(rec, img) + code_loss + self.commit * commit + 0.1 * diversity
        return loss, rec


def get_inputs():
    return [torch.randn(B, CI, S, S)]


def get_init_inputs():
    return [CI, C, K, G, 0.25]
