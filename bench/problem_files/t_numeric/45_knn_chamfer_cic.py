import torch
import torch.nn as nn


class Model(nn.Module):
    """Point-cloud comparison: brute-force kNN local covariance descriptors (compact
    weights that vanish at the k-th neighbour), chamfer distance with a soft F-score,
    and trilinear (cloud-in-cell) voxel densities compared on a grid."""

    def __init__(self, k, tau, grid):
        super().__init__()
        self.k, self.tau, self.grid = k, tau, grid

    def surface(self, x):
        d2 = (x[:, :, None] - x[:, None]).pow(2).sum(-1)
        val, idx = torch.topk(d2, self.k + 1, dim=-1, largest=False)
        B = x.shape[0]
        nb = x[torch.arange(B, device=x.device)[:, None, None], idx]
        w = (1.0 - val / val[..., -1:]).square()
        w = (w / w.sum(-1, keepdim=True)).unsqueeze(-1)
        mu = (w * nb).sum(2, keepdim=True)
        c = nb - mu
        cov = torch.einsum("bnki,bnkj->bnij", w * c, c)
        tr = cov.diagonal(dim1=-2, dim2=-1).sum(-1)
        fro = cov.square().sum(dim=(-2, -1))
        return fro / (tr * tr + 1e-6), torch.sqrt(val[..., -1])

    def voxels(self, x):
        B, N, _ = x.shape
        g = self.grid
        p = (x * 0.2 + 0.5).clamp(0.0, 0.999) * (g - 1)
        i0 = p.floor()
        f = p - i0
        i0 = i0.long()
        out = torch.zeros(B, g * g * g, device=x.device)
        for c in range(8):
            o = torch.tensor([(c >> 2) & 1, (c >> 1) & 1, c & 1], device=x.device)
            w = torch.where(o.bool(), f, 1.0 - f).prod(dim=-1)
            ii = i0 + o
            lin = (ii[..., 0] * g + ii[..., 1]) * g + ii[..., 2]
            out.scatter_add_(1, lin, w)
        return out.view(B, g, g, g) / N

    def forward(self, a, b):
        desc, radius = self.surface(a)
        d2 = (a[:, :, None, :] - b[:, None, :, :]).square().sum(-1)
        ab = d2.min(dim=2).values
        ba = d2.min(dim=1).values
        chamfer = ab.mean(1) + ba.mean(1)
        prec = torch.sigmoid((self.tau - torch.sqrt(ab + 1e-6)) * 20.0).mean(1)
        rec = torch.sigmoid((self.tau - torch.sqrt(ba + 1e-6)) * 20.0).mean(1)
        fscore = 2 * prec * rec / (prec + rec + 1e-6)
        va, vb = self.voxels(a), self.voxels(b)
        overlap = torch.minimum(va, vb).sum(dim=(1, 2, 3))
        return desc, radius, chamfer, fscore, overlap


def get_inputs():
    return [torch.randn(2, 421, 3), torch.randn(2, 387, 3)]


def get_init_inputs():
    return [10, 0.25, 17]
