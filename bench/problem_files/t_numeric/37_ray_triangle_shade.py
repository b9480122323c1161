import torch
import torch.nn as nn


class Model(nn.Module):
    """Moeller-Trumbore on all ray/triangle pairs with soft (anti-aliased) edges,
    soft-min depth compositing and Lambert shading of interpolated normals."""

    def __init__(self, edge_sharp, depth_sharp, light):
        super().__init__()
        self.edge, self.depth = edge_sharp, depth_sharp
        l = torch.tensor(light)
        self.register_buffer("light", l / l.norm())

    def forward(self, origin, direction, verts, faces, normals, albedo):
        tri = verts[faces]                                   # (T, 3, 3)
        v0 = tri[:, 0]
        e1, e2 = tri[:, 1] - v0, tri[:, 2] - v0
        d = direction[:, None, :]                            # (R, 1, 3)
        p = torch.linalg.cross(d.expand(-1, e2.shape[0], -1), e2[None].expand(d.shape[0], -1, -1))
        det = (e1 * p).sum(-1)
        inv = det / (det * det + 2e-2)
        s = origin[:, None] - v0
        u = (s * p).sum(-1) * inv
        q = torch.linalg.cross(s, e1[None].expand_as(s))
        v = (d * q).sum(-1) * inv
        t = (e2 * q).sum(-1) * inv
        w = 1.0 - u - v
        inside = torch.minimum(torch.minimum(u, v), w)
        cover = (inside * self.edge).clamp(0.0, 1.0) * (t * self.edge).clamp(0.0, 1.0)
        weight = cover * torch.exp(-self.depth * t.clamp(0.0, 20.0))
        norm = weight.sum(-1, keepdim=True) + 2e-2
        weight = weight / norm
        bary = torch.stack((w, u, v), dim=-1).clamp(0.0, 1.0)
        n = torch.einsum("rtk,tkc->rtc", bary, normals[faces])
        n = n / torch.sqrt((n * n).sum(-1, keepdim=True) + 1e-2)
        lam = (n * self.light).sum(-1).abs()
        color = torch.einsum("rt,rt,tc->rc", weight, lam, albedo)
        depth = (weight * t.clamp(0.0, 20.0)).sum(-1)
        return color, depth, 1.0 - torch.prod(1.0 - cover, dim=-1)


def get_inputs():
    R, V, T = 900, 40, 48
    o = torch.tensor([0.0, 0.0, -3.0]) + 0.3 * torch.randn(R, 3)
    d = torch.tensor([0.0, 0.0, 1.0]) + 0.3 * torch.randn(R, 3)
    d = d / d.norm(dim=-1, keepdim=True)
    verts = 1.2 * torch.randn(V, 3)
    faces = torch.stack([torch.randperm(V)[:3] for _ in range(T)])
    n = torch.randn(V, 3)
    return [o, d, verts, faces, n / n.norm(dim=-1, keepdim=True), torch.rand(T, 3)]


def get_init_inputs():
    return [4.0, 0.8, [0.3, 0.8, -0.5]]
