import torch
import torch.nn as nn


def qmul(a, b):
    aw, ax, ay, az = a.unbind(-1)
    bw, bx, by, bz = b.unbind(-1)
    return torch.stack((aw * bw - ax * bx - ay * by - az * bz, aw * bx + ax * bw + ay * bz - az * by,
                        aw * by - ax * bz + ay * bw + az * bx, aw * bz + ax * by - ay * bx + az * bw), -1)


def to_matrix(q):
    w, x, y, z = (q / q.norm(dim=-1, keepdim=True)).unbind(-1)
    m = [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y),
         2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x),
         2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)]
    return torch.stack(m, -1).unflatten(-1, (3, 3))


def hat(v):
    o = torch.zeros_like(v[..., 0])
    x, y, z = v.unbind(-1)
    return torch.stack([o, -z, y, z, o, -x, -y, x, o], -1).view(*v.shape[:-1], 3, 3)


class Model(nn.Module):
    """Rotations, forward kinematics, slerp, Rodrigues, real spherical harmonics, dihedrals and ray-triangle tests."""

    def __init__(self, joints):
        super().__init__()
        self.offset = nn.Parameter(torch.randn(joints, 3))
        self.parents = [-1] + [(3 * i) // 4 for i in range(joints - 1)]
        self.sh = nn.Parameter(torch.randn(9, 2))

    def forward(self, quat, axis, pts):
        rot = to_matrix(quat)
        gr, gt = [rot[:, 0]], [self.offset[0].expand(quat.shape[0], 3)]
        for j in range(1, len(self.parents)):
            p = self.parents[j]
            gr.append(gr[p] @ rot[:, j])
            gt.append(torch.einsum("bij,j->bi", gr[p], self.offset[j]) + gt[p])
        joints = torch.stack(gt, 1)

        th = axis.square().sum(-1, keepdim=True).add(1e-6).sqrt()
        k = hat(axis / th)
        rod = torch.eye(3, device=axis.device, dtype=axis.dtype) + th[..., None].sin() * k + (1 - th[..., None].cos()) * (k @ k)
        qa = nn.functional.normalize(quat[:, 0], dim=-1)
        qb = nn.functional.normalize(quat[:, 0] + 0.3 * quat[:, 1], dim=-1)
        dot = (qa * qb).sum(-1, keepdim=True).clamp(-0.95, 0.95)
        om = torch.acos(dot)
        t = torch.linspace(0, 1, 7, device=axis.device, dtype=axis.dtype)[:, None, None]
        slerp = (torch.sin((1 - t) * om) * qa + torch.sin(t * om) * qb) / torch.sin(om)
        conj = qa * qa.new_tensor([1, -1, -1, -1])
        spun = qmul(qmul(qa, nn.functional.pad(axis, (1, 0))), conj)[..., 1:]

        x, y, z = nn.functional.normalize(axis, dim=-1).unbind(-1)
        basis = torch.stack([torch.full_like(x, 0.282095), 0.488603 * y, 0.488603 * z, 0.488603 * x, 1.092548 * x * y, 1.092548 * y * z,
                             0.315392 * (3 * z * z - 1), 1.092548 * x * z, 0.546274 * (x * x - y * y)], -1)
        colour = torch.sigmoid(basis @ self.sh)

        b = pts.diff(dim=1)
        n1 = torch.cross(b[:, :-2], b[:, 1:-1], dim=-1)
        n2 = torch.cross(b[:, 1:-1], b[:, 2:], dim=-1)
        m1 = torch.cross(n1, b[:, 1:-1] / (b[:, 1:-1].norm(dim=-1, keepdim=True) + 0.1), dim=-1)
        cosd = torch.nn.functional.cosine_similarity(n1, n2, dim=-1, eps=1e-2)
        sind = (m1 * n2).sum(-1) / (m1.norm(dim=-1) * n2.norm(dim=-1) + 1)
        area = 0.5 * n1.norm(dim=-1, p=2)
        gram = torch.einsum("bid,bjd->bij", pts, pts)
        sq = gram.diagonal(dim1=1, dim2=2)
        d2 = (sq[:, :, None] + sq[:, None] - 2 * gram).clamp(min=0) + 0.5
        lj = (d2 ** -6 - d2 ** -3).tril(-1).sum((1, 2))
        return joints, rod, slerp, spun, colour, (cosd, sind, area), lj, torch.linalg.det(rod)


def get_inputs():
    return [torch.randn(41, 13, 4), torch.randn(41, 3), torch.randn(41, 17, 3)]


def get_init_inputs():
    return [13]
