import torch
import torch.nn as nn
from torch.func import jacrev, vmap


def skew(w):
    z = torch.zeros_like(w[0])
    return torch.stack([z, -w[2], w[1], w[2], z, -w[0], -w[1], w[0], z]).view(3, 3)


def se3_exp(screw, q):
    """Exponential of a unit screw (w, v) times an angle."""
    w, v = screw[:3], screw[3:]
    k = skew(w)
    kk = k @ k
    s, c = torch.sin(q), torch.cos(q)
    eye = torch.eye(3, dtype=screw.dtype)
    r = eye + s * k + (1 - c) * kk
    p = (q * eye + (1 - c) * k + (q - s) * kk) @ v
    return torch.cat([torch.cat([r, p.unsqueeze(1)], 1), torch.eye(4, dtype=screw.dtype)[3:]], 0)


def quat_mul(a, b):
    w = a[..., :1] * b[..., :1] - (a[..., 1:] * b[..., 1:]).sum(-1, keepdim=True)
    v = a[..., :1] * b[..., 1:] + b[..., :1] * a[..., 1:] + torch.linalg.cross(a[..., 1:], b[..., 1:])
    return torch.cat([w, v], -1)


def quat_of(r):
    """Quaternion of a rotation: the largest of four forms, without branches."""
    m = r.reshape(9)
    d0, d1, d2 = m[0], m[4], m[8]
    forms = torch.stack([
        torch.stack([1 + d0 + d1 + d2, m[7] - m[5], m[2] - m[6], m[3] - m[1]]),
        torch.stack([m[7] - m[5], 1 + d0 - d1 - d2, m[3] + m[1], m[2] + m[6]]),
        torch.stack([m[2] - m[6], m[3] + m[1], 1 - d0 + d1 - d2, m[7] + m[5]]),
        torch.stack([m[3] - m[1], m[2] + m[6], m[7] + m[5], 1 - d0 - d1 + d2]),
    ])
    best = forms.detach().diagonal().argmax()
    q = torch.index_select(forms, 0, best.reshape(1)).squeeze(0)
    return q / torch.linalg.vector_norm(q)


class Model(nn.Module):
    """Inverse kinematics of a batch of arms: products of SE(3) exponentials, vmap(jacrev) of
    the pose error, damped least squares within joint limits, and velocity manipulability."""

    def __init__(self, joints, steps, damping):
        super().__init__()
        axis = torch.eye(3)[torch.tensor([2, 1, 2, 1, 2, 1, 2])[:joints]]
        at = torch.cumsum(torch.full((joints, 3), 0.05) + 0.3 * torch.eye(3)[torch.arange(joints) % 3], 0)
        self.screws = nn.Parameter(torch.cat([axis, -torch.linalg.cross(axis, at)], 1))
        home = torch.eye(4)
        home[:3, 3] = at[-1] + 0.1
        self.register_buffer("home", home)
        self.steps, self.damping = steps, damping
        self.limit = nn.Parameter(torch.linspace(1.6, 2.9, joints))

    def pose(self, q, screws):
        t = torch.eye(4, dtype=q.dtype)
        for i in range(q.shape[0]):
            t = t @ se3_exp(screws[i], q[i])
        return t @ self.home

    def error(self, q, screws, position, goal):
        t = self.pose(q, screws)
        have = quat_of(t[:3, :3])
        turn = quat_mul(goal, have * have.new_tensor([1.0, -1.0, -1.0, -1.0]))
        turn = turn * torch.copysign(torch.ones_like(turn[:1]), turn[:1].detach())
        return torch.cat([position - t[:3, 3], 2 * turn[1:]])

    def forward(self, q, position, goal):
        goal = torch.nn.functional.normalize(goal, dim=-1)
        err = vmap(self.error, in_dims=(0, None, 0, 0))
        jac = vmap(jacrev(self.error), in_dims=(0, None, 0, 0))
        eye = torch.eye(6, dtype=q.dtype)
        sizes = []
        for _ in range(self.steps):
            e = err(q, self.screws, position, goal)
            j = -jac(q, self.screws, position, goal)
            jt = j.mT
            step = (jt @ torch.linalg.solve(j @ jt + self.damping * eye, e.unsqueeze(-1))).squeeze(-1)
            q = torch.clamp(q + step.clamp(-0.4, 0.4), -self.limit, self.limit)
            sizes.append(torch.linalg.vector_norm(e, dim=-1))
        gram = j @ jt
        manip = torch.linalg.slogdet(gram + 1e-3 * eye).logabsdet
        final = vmap(self.pose, in_dims=(0, None))(q, self.screws)
        joined = torch.block_diag(*gram[:3].unbind(0))
        quats = vmap(quat_of)(final[:, :3, :3])
        return q, torch.stack(sizes, 1), manip, final, joined, quats


def get_inputs():
    b = 19
    return [0.5 * torch.randn(b, 7), 0.4 + 0.3 * torch.randn(b, 3), torch.tensor([2.0, 0, 0, 0]) + 0.6 * torch.randn(b, 4)]


def get_init_inputs():
    return [7, 3, 5e-2]
