import torch
import torch.nn as nn


class Model(nn.Module):
    """Sphere tracing with a fixed number of steps over a smooth blend of spheres, a
    torus and a ground plane; tetrahedral normals, soft shadow-like occlusion, fog."""

    def __init__(self, steps, blend, eps, height, width, fov):
        super().__init__()
        self.steps, self.blend, self.eps = steps, blend, eps
        y, x = torch.meshgrid(torch.linspace(1, -1, height), torch.linspace(-1, 1, width), indexing="ij")
        d = torch.stack((x * fov * width / height, y * fov, torch.ones_like(x)), -1)
        self.register_buffer("rays", (d / d.norm(dim=-1, keepdim=True)).reshape(-1, 3))
        self.register_buffer("tet", torch.tensor([[1., -1., -1.], [-1., -1., 1.], [-1., 1., -1.], [1., 1., 1.]]))
        self.register_buffer("sun", torch.tensor([0.48, 0.72, -0.5]))

    def sdf(self, p, centers, radii):
        ds = (p.unsqueeze(-2) - centers).norm(dim=-1) - radii
        soft = -torch.logsumexp(-ds / self.blend, dim=-1) * self.blend
        qx = torch.sqrt(p[..., 0] ** 2 + (p[..., 2] - 4.0) ** 2 + 1e-6) - 1.3
        torus = torch.sqrt(qx ** 2 + (p[..., 1] + 0.3) ** 2 + 1e-6) - 0.25
        plane = p[..., 1] + 1.2
        h = (0.5 + 0.5 * (torus - soft) / 0.3).clamp(0, 1)
        body = torus * (1 - h) + soft * h - 0.3 * h * (1 - h)
        return torch.minimum(body, plane)

    def forward(self, cam, centers, radii, tint):
        t = torch.full_like(self.rays[:, :1], 0.5)
        glow = torch.zeros_like(t)
        for _ in range(self.steps):
            d = self.sdf(cam + t * self.rays, centers, radii).unsqueeze(-1)
            t = (t + 0.9 * d).clamp(max=12.0)
            glow = glow + torch.exp(-8.0 * d.abs())
        p = cam + t * self.rays
        off = p.unsqueeze(1) + self.eps * self.tet
        n = (self.sdf(off, centers, radii).unsqueeze(-1) * self.tet).sum(1)
        n = n / torch.sqrt((n * n).sum(-1, keepdim=True) + 1e-4)
        diff = torch.relu((n * self.sun).sum(-1, keepdim=True))
        occ = sum(self.sdf(p + h * n, centers, radii).unsqueeze(-1) / h for h in (0.1, 0.3)) * 0.5
        col = (0.2 + 0.8 * diff) * occ.clamp(0, 1) * tint + 0.02 * glow
        fog = torch.exp(-0.15 * t)
        return col * fog + (1 - fog) * 0.6, t.squeeze(-1)


def get_inputs():
    centers = torch.tensor([0.0, 0.3, 4.0]) + torch.randn(6, 3) * torch.tensor([0.8, 0.4, 0.6])
    return [torch.tensor([0.0, 0.4, 0.0]), centers, 0.3 + 0.3 * torch.rand(6), torch.rand(3)]


def get_init_inputs():
    return [10, 0.2, 0.05, 36, 55, 0.6]
