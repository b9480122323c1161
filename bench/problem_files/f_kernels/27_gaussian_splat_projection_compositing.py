import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, count, height, width, focal):
        super().__init__()
        self.h, self.w, self.focal = height, width, focal
        self.mean = nn.Parameter(torch.randn(count, 3) * torch.tensor([0.8, 0.6, 0.8]))
        self.quat = nn.Parameter(torch.randn(count, 4))
        self.log_scale = nn.Parameter(torch.randn(count, 3) * 0.3 - 1.8)
        self.opacity = nn.Parameter(torch.randn(count))
        self.sh = nn.Parameter(0.4 * torch.randn(count, 9, 3))

    def covariance(self):
        w, x, y, z = F.normalize(self.quat, dim=-1).unbind(-1)
        rot = torch.stack((1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y),
                           2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x),
                           2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)), -1).view(-1, 3, 3)
        m = rot * self.log_scale.exp().unsqueeze(1)
        return m @ m.transpose(1, 2)

    def colour(self, direction):
        x, y, z = direction.unbind(-1)
        basis = torch.stack((0.2820948 * torch.ones_like(x), -0.4886025 * y, 0.4886025 * z, -0.4886025 * x,
                             1.0925484 * x * y, -1.0925484 * y * z, 0.3153916 * (2 * z * z - x * x - y * y),
                             -1.0925484 * x * z, 0.5462742 * (x * x - y * y)), -1)
        return F.relu(torch.einsum("gk,gkc->gc", basis, self.sh) + 0.5)

    def forward(self, rotation, translation, background, target):
        cam = self.mean @ rotation.T + translation
        depth, order = torch.sort(cam[:, 2])
        cam = cam[order]
        z = depth.clamp_min(0.2)
        lim = 1.3 * 0.5 * self.w / self.focal
        tx, ty = (cam[:, 0] / z).clamp(-lim, lim) * z, (cam[:, 1] / z).clamp(-lim, lim) * z
        zero = torch.zeros_like(z)
        jac = torch.stack((self.focal / z, zero, -self.focal * tx / z ** 2, zero, self.focal / z, -self.focal * ty / z ** 2), -1).view(-1, 2, 3)
        t = jac @ rotation
        cov = t @ self.covariance()[order] @ t.transpose(1, 2)
        a, b, c = cov[:, 0, 0] + 0.3, cov[:, 0, 1], cov[:, 1, 1] + 0.3
        det = a * c - b * b
        mx = self.focal * cam[:, 0] / z + 0.5 * self.w
        my = self.focal * cam[:, 1] / z + 0.5 * self.h
        gx = torch.arange(self.w, device=z.device) + 0.5
        gy = torch.arange(self.h, device=z.device) + 0.5
        dx = gx.view(1, 1, -1) - mx.view(-1, 1, 1)
        dy = gy.view(1, -1, 1) - my.view(-1, 1, 1)
        k = lambda v: (v / det).view(-1, 1, 1)
        power = -0.5 * (k(c) * dx * dx + k(a) * dy * dy) + k(b) * dx * dy
        live = (depth > 0.2).view(-1, 1, 1)
        alpha = (torch.sigmoid(self.opacity[order]).view(-1, 1, 1) * torch.exp(power.clamp(max=0))).clamp(max=0.99) * live
        through = torch.cumprod(1 - alpha, dim=0)
        weight = alpha * F.pad(through[:-1], (0, 0, 0, 0, 1, 0), value=1.0)
        origin = -rotation.T @ translation
        rgb = self.colour(F.normalize(self.mean - origin, dim=-1))[order]
        image = torch.einsum("gc,ghw->chw", rgb, weight) + through[-1] * background.view(3, 1, 1)
        acc = weight.sum(0)
        dmap = torch.einsum("g,ghw->hw", depth, weight) / acc.clamp_min(1e-3)
        distort = (weight * (dmap - depth.view(-1, 1, 1)).abs()).sum(0)
        loss = (image - target).abs().mean() + 0.01 * distort.mean() - 0.01 * torch.log(acc + 1e-4).mean()
        return image, dmap, acc, loss


def get_inputs():
    ang = torch.rand(()) - 0.5
    c, s = ang.cos(), ang.sin()
    o, l = torch.zeros(()), torch.ones(())
    rotation = torch.stack((c, o, s, o, l, o, -s, o, c)).view(3, 3)
    return [rotation, torch.tensor([0.0, 0.0, 4.0]) + 0.1 * torch.randn(3), torch.rand(3), torch.rand(3, 59, 67)]


def get_init_inputs():
    return [163, 59, 67, 50.0]
