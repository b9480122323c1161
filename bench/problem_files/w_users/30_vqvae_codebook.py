import torch
import torch.nn as nn
import torch.nn.functional as F


class ResidualVQ(nn.Module):
    def __init__(self, n_q, n_codes, dim, decay=0.95):
        super().__init__()
        self.decay = decay
        self.register_buffer("codes", torch.randn(n_q, n_codes, dim))
        self.register_buffer("count", torch.ones(n_q, n_codes))
        self.register_buffer("sums", self.codes.clone())

    def forward(self, x):
        # x: N, dim
        resid = x
        quant = torch.zeros_like(x)
        all_idx, commit = [], 0.0
        for i in range(self.codes.size(0)):
            cb = self.codes[i]
            d = resid.pow(2).sum(1, keepdim=True) - 2 * resid @ cb.t() + cb.pow(2).sum(1)
            idx = d.argmin(1)
            q = F.embedding(idx, cb)
            commit = commit + F.mse_loss(resid, q.detach())
            if self.training:
                with torch.no_grad():
                    oh = F.one_hot(idx, cb.size(0)).type_as(x)
                    self.count[i].mul_(self.decay).add_(oh.sum(0), alpha=1 - self.decay)
                    self.sums[i].mul_(self.decay).add_(oh.t() @ resid.detach(), alpha=1 - self.decay)
                    n = self.count[i].sum()
                    smooth = (self.count[i] + 1e-3) / (n + cb.size(0) * 1e-3) * n
                    new = self.sums[i] / smooth.unsqueeze(1)
                    q = q.clone()
                    self.codes[i] = new
            quant = quant + q
            resid = resid - q.detach()
            all_idx.append(idx)
        return x + (quant - x).detach(), torch.stack(all_idx, -1), commit


class FSQ(nn.Module):
    def __init__(self, levels):
        super().__init__()
        self.register_buffer("levels", torch.tensor(levels))
        self.register_buffer("basis", torch.cumprod(torch.tensor([1] + levels[:-1]), 0))

    def forward(self, z):
        half = (self.levels - 1) * (1 - 1e-3) / 2
        off = torch.where(self.levels % 2 == 0, 0.5, 0.0)
        b = torch.tanh(z + torch.atanh(off / half)) * half - off
        q = b + (b.round() - b).detach()
        ids = ((q.detach() + self.levels // 2).long() * self.basis).sum(-1)
        return q / (self.levels // 2), ids


class Model(nn.Module):
    """Patch VQ-VAE: unfold, linear, residual VQ, FSQ side channel, fold with overlap."""

    def __init__(self, patch=6, stride=4, dim=16):
        super().__init__()
        self.patch, self.stride = patch, stride
        self.enc = nn.Sequential(nn.Linear(3 * patch * patch, 64), nn.Mish(), nn.Linear(64, dim))
        self.vq = ResidualVQ(3, 64, dim)
        self.fsq = FSQ([8, 5, 5, 4])
        self.to_fsq = nn.Linear(dim, 4)
        self.dec = nn.Sequential(nn.Linear(dim + 4, 64), nn.SELU(), nn.Linear(64, 3 * patch * patch))

    def forward(self, img):
        B, C, H, W = img.shape
        cols = F.unfold(img, self.patch, padding=1, stride=self.stride)
        tok = cols.transpose(1, 2)
        L = tok.shape[1]
        m = tok.mean(-1, keepdim=True)
        z = self.enc(tok - m).reshape(B * L, -1)
        zq, idx, commit = self.vq(z)
        f, fid = self.fsq(self.to_fsq(z))
        rec = self.dec(torch.cat([zq, f], 1)).view(B, L, -1) + m
        num = F.fold(rec.mT, (H, W), self.patch, padding=1, stride=self.stride)
        den = F.fold(torch.ones_like(cols), (H, W), self.patch, padding=1, stride=self.stride)
        out = num / den.clamp(min=1)
        mse = (out - img).square().mean()
        usage = torch.zeros(3, 64, device=img.device)
        for i in range(3):
            usage[i].scatter_add_(0, idx[:, i], torch.ones_like(idx[:, i], dtype=usage.dtype))
        p = usage / usage.sum(1, keepdim=True)
        perplexity = torch.exp(-torch.special.xlogy(p, p.clamp_min(1e-10)).sum(1))
        side = int(L ** 0.5)
        grid = fid.view(B, side, side)
        runs = (grid[:, :, 1:] == grid[:, :, :-1]).sum((1, 2))
        return out, mse + 0.25 * commit, idx.view(B, L, 3), perplexity, grid, runs, self.vq.count.clone()


def get_inputs():
    return [torch.rand(12, 3, 32, 32)]


def get_init_inputs():
    return [6, 4, 16]
