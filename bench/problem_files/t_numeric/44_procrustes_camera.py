import torch
import torch.nn as nn


class Model(nn.Module):
    """Rigid alignment of landmark sets: quaternion pose applied to a template,
    weighted Kabsch (SVD) to the observations, pinhole projection with radial and
    tangential distortion, and a robust reprojection error."""

    def __init__(self, fx, fy, cx, cy, dist, delta):
        super().__init__()
        self.fx, self.fy, self.cx, self.cy = fx, fy, cx, cy
        self.dist = dist
        self.delta = delta

    @staticmethod
    def rotmat(q):
        q = q / q.norm(dim=-1, keepdim=True)
        w, x, y, z = q.unbind(-1)
        return torch.stack((
            1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y),
            2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x),
            2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)), dim=-1).view(*q.shape[:-1], 3, 3)

    def project(self, p):
        k1, k2, p1, p2 = self.dist
        xn, yn = p[..., 0] / p[..., 2], p[..., 1] / p[..., 2]
        r2 = xn * xn + yn * yn
        rad = 1 + k1 * r2 + k2 * r2 * r2
        xd = xn * rad + 2 * p1 * xn * yn + p2 * (r2 + 2 * xn * xn)
        yd = yn * rad + p1 * (r2 + 2 * yn * yn) + 2 * p2 * xn * yn
        return torch.stack((self.fx * xd + self.cx, self.fy * yd + self.cy), dim=-1)

    def forward(self, template, quat, trans, noise, weight):
        # template (N, 3), quat (B, 4), trans (B, 3), noise (B, N, 3), weight (B, N)
        obs = torch.einsum("bij,nj->bni", self.rotmat(quat), template) + trans[:, None] + noise
        w = weight / weight.sum(-1, keepdim=True)
        mu_t = w @ template
        mu_o = (w.unsqueeze(-1) * obs).sum(1)
        A = template[None] - mu_t[:, None]
        O = obs - mu_o[:, None]
        Hm = torch.einsum("bn,bni,bnj->bij", w, A, O)
        U, S, Vh = torch.linalg.svd(Hm)
        det = torch.det(U @ Vh)
        fix = torch.ones_like(S)
        fix[:, 2] = torch.sign(det)
        R = Vh.transpose(1, 2) @ (fix.unsqueeze(-1) * U.transpose(1, 2))
        t = mu_o - (R @ mu_t.unsqueeze(-1)).squeeze(-1)
        fit = template @ R.transpose(1, 2) + t[:, None]
        rmsd = torch.sqrt((w * (fit - obs).square().sum(-1)).sum(-1))
        e = (self.project(fit) - self.project(obs)).norm(dim=-1)
        hub = torch.where(e < self.delta, 0.5 * e * e, self.delta * (e - 0.5 * self.delta))
        return R, t, rmsd, (w * hub).sum(-1)


def get_inputs():
    B, N = 56, 203
    template = torch.randn(N, 3) * torch.tensor([1.0, 0.7, 0.5])
    trans = torch.tensor([0.0, 0.0, 8.0]) + 0.5 * torch.randn(B, 3)
    return [template, torch.randn(B, 4), trans, 0.05 * torch.randn(B, N, 3), 0.2 + torch.rand(B, N)]


def get_init_inputs():
    return [400.0, 410.0, 320.0, 240.0, (0.1, -0.02, 0.001, -0.002), 3.0]
