import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """Rays against oriented boxes: quaternions to matrices, slab test, nearest hit, normals and shading."""

    def __init__(self, boxes):
        super().__init__()
        self.quat = nn.Parameter(torch.randn(boxes, 4))
        self.center = nn.Parameter(torch.randn(boxes, 3) * 4)
        self.lhalf = nn.Parameter(torch.randn(boxes, 3) * 0.3)
        self.col = nn.Parameter(torch.rand(boxes, 3))
        self.light = nn.Parameter(torch.tensor([0.3, 0.8, -0.5]))

    def forward(self, o, d):
        w, x, y, z = F.normalize(self.quat, dim=-1).unbind(-1)
        r = torch.stack([1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y),
                         2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x),
                         2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)], -1).view(-1, 3, 3)
        d = F.normalize(d, dim=-1)
        ol = torch.einsum("bji,rbj->rbi", r, o.unsqueeze(1) - self.center)
        dl = torch.einsum("bji,rj->rbi", r, d)
        inv = 1.0 / torch.where(dl.abs() < 1e-4, torch.full_like(dl, 1e-4), dl)
        half = self.lhalf.exp()
        t0, t1 = (-half - ol) * inv, (half - ol) * inv
        near, axis = torch.minimum(t0, t1).max(-1)
        far = torch.maximum(t0, t1).amin(-1)
        hit = (near < far) & (far > 0)
        t = torch.where(hit, torch.where(near > 0, near, far), torch.full_like(near, 1e3))
        tb, ib = t.min(dim=1)
        ax = torch.gather(axis, 1, ib.unsqueeze(1))
        sgn = -torch.sign(torch.gather(dl[torch.arange(o.shape[0], device=o.device), ib], 1, ax))
        nrm = sgn * torch.gather(r[ib], 2, ax.unsqueeze(1).expand(-1, 3, 1)).squeeze(-1)
        lam = (nrm * F.normalize(self.light, dim=0)).sum(-1).clamp(min=0)
        side = torch.linalg.cross(nrm, d, dim=-1).square().sum(-1)
        soft = torch.sigmoid((far - near).clamp(-20, 20)).mean(1)
        rgb = self.col[ib] * (0.2 + lam + 0.1 * side).unsqueeze(-1)
        return torch.where((tb < 1e3).unsqueeze(-1), rgb, torch.zeros_like(rgb)), tb, soft


def get_inputs():
    return [torch.randn(20011, 3) * 6, torch.randn(20011, 3)]


def get_init_inputs():
    return [127]
