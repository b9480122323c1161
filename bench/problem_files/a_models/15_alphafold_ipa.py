import torch
import torch.nn as nn
import torch.nn.functional as F


def quat_to_rot(q):
    a, b, c, d = q.unbind(-1)
    rows = [a * a + b * b - c * c - d * d, 2 * (b * c - a * d), 2 * (b * d + a * c),
            2 * (b * c + a * d), a * a - b * b + c * c - d * d, 2 * (c * d - a * b),
            2 * (b * d - a * c), 2 * (c * d + a * b), a * a - b * b - c * c + d * d]
    return torch.stack(rows, dim=-1).unflatten(-1, (3, 3))


def quat_mul(q, r):
    (a, b, c, d), (e, f, g, h) = q.unbind(-1), r.unbind(-1)
    return torch.stack([a * e - b * f - c * g - d * h, a * f + b * e + c * h - d * g,
                        a * g - b * h + c * e + d * f, a * h + b * g - c * f + d * e], dim=-1)


def rot_vec(r, v):
    return (r * v.unsqueeze(-2)).sum(-1)


class IPA(nn.Module):
    def __init__(self, c_s, c_z, c, heads, n_qk, n_v):
        super().__init__()
        self.h, self.c, self.nq, self.nv = heads, c, n_qk, n_v
        self.q, self.kv = nn.Linear(c_s, heads * c), nn.Linear(c_s, 2 * heads * c)
        self.q_pts, self.kv_pts = nn.Linear(c_s, heads * n_qk * 3), nn.Linear(c_s, heads * (n_qk + n_v) * 3)
        self.bias, self.down_z = nn.Linear(c_z, heads), nn.Linear(c_z, c_z // 4)
        self.head_w = nn.Parameter(torch.full((heads,), 0.541324854612918))
        self.out = nn.Linear(heads * (c_z // 4 + c + n_v * 4), c_s)

    def points(self, x, rot, trans, n):
        x = torch.stack(torch.split(x, x.shape[-1] // 3, dim=-1), dim=-1)
        x = rot_vec(rot.unsqueeze(2), x) + trans.unsqueeze(2)
        return x.view(*x.shape[:2], self.h, n, 3)

    def forward(self, s, z, rot, trans, mask):
        b, n, _ = s.shape
        q = self.q(s).view(b, n, self.h, -1)
        k, v = self.kv(s).view(b, n, self.h, -1).split(self.c, dim=-1)
        qp = self.points(self.q_pts(s), rot, trans, self.nq)
        kp, vp = self.points(self.kv_pts(s), rot, trans, self.nq + self.nv).split([self.nq, self.nv], dim=-2)
        a = torch.matmul(q.permute(0, 2, 1, 3), k.permute(0, 2, 3, 1)) * (3 * self.c) ** -0.5
        a = a + 3 ** -0.5 * self.bias(z).permute(0, 3, 1, 2)
        d = (qp.unsqueeze(2) - kp.unsqueeze(1)).pow(2).sum((-1, -2))
        w = F.softplus(self.head_w) * (3 * (self.nq * 9.0 / 2)) ** -0.5
        a = a + (d * w * -0.5).permute(0, 3, 1, 2)
        a = torch.softmax(a + 1e5 * (mask[:, None, :, None] * mask[:, None, None, :] - 1), dim=-1)
        o = torch.matmul(a, v.transpose(1, 2)).transpose(1, 2).reshape(b, n, -1)
        op = torch.einsum("bhij,bjhpx->bihpx", a, vp).flatten(2, 3)
        op = rot_vec(rot.transpose(-1, -2).unsqueeze(2), op - trans.unsqueeze(2))
        oz = torch.einsum("bhij,bijc->bihc", a, self.down_z(z)).flatten(2)
        return self.out(torch.cat([o, *op.unbind(-1), torch.sqrt(op.pow(2).sum(-1) + 1e-6), oz], dim=-1))


class Model(nn.Module):
    """AlphaFold structure module: shared IPA iterations, quaternion updates, torsion head, clamped FAPE."""

    def __init__(self, c_s, c_z, c, heads, n_qk, n_v, n_iter, n_bins):
        super().__init__()
        self.n_iter, self.relpos = n_iter, nn.Embedding(2 * 32 + 1, c_z)
        self.ln_s, self.ln_z, self.lin = nn.LayerNorm(c_s), nn.LayerNorm(c_z), nn.Linear(c_s, c_s)
        self.ipa, self.ln_ipa = IPA(c_s, c_z, c, heads, n_qk, n_v), nn.LayerNorm(c_s)
        self.t0, self.t1, self.t2 = [nn.Linear(c_s, c_s) for _ in range(3)]
        self.ln_t, self.bb = nn.LayerNorm(c_s), nn.Linear(c_s, 6)
        nn.init.normal_(self.bb.weight, std=0.02)
        self.ang_s, self.ang_i = nn.Linear(c_s, 128), nn.Linear(c_s, 128)
        self.ang_res = nn.ModuleList([nn.Linear(128, 128) for _ in range(4)])
        self.ang_out, self.plddt = nn.Linear(128, 14), nn.Linear(c_s, n_bins)

    def fape(self, rot, trans, t_rot, t_trans, mask):
        loc = rot_vec(rot.transpose(-1, -2).unsqueeze(2), trans.unsqueeze(1) - trans.unsqueeze(2))
        ref = rot_vec(t_rot.transpose(-1, -2).unsqueeze(2), t_trans.unsqueeze(1) - t_trans.unsqueeze(2))
        err = torch.sqrt((loc - ref).pow(2).sum(-1) + 1e-4)
        err = 0.9 * err.clamp(max=10.0) + 0.1 * err
        m = mask.unsqueeze(-1) * mask.unsqueeze(-2)
        return (err / 10.0 * m).sum((-1, -2)) / (m.sum((-1, -2)) + 1e-4)

    def forward(self, s, z, index, t_quat, t_trans, t_ang, mask):
        b, n, _ = s.shape
        s_init = s = self.ln_s(s)
        rel = (index[:, :, None] - index[:, None, :]).clamp(-32, 32) + 32
        z, s = self.ln_z(z + self.relpos(rel)), self.lin(s)
        quat, trans, loss, traj = F.pad(s.new_ones(b, n, 1), (0, 3)), s.new_zeros(b, n, 3), 0.0, []
        t_rot = quat_to_rot(t_quat / t_quat.norm(dim=-1, keepdim=True))
        for i in range(self.n_iter):
            rot = quat_to_rot(quat)
            s = self.ln_ipa(s + self.ipa(s, z, rot, trans, mask))
            s = self.ln_t(s + self.t2(F.relu(self.t1(F.relu(self.t0(s))))))
            upd, shift = self.bb(s).split(3, dim=-1)
            quat = quat + quat_mul(quat, F.pad(upd, (1, 0))) * mask.unsqueeze(-1)
            quat = quat / quat.norm(dim=-1, keepdim=True)
            trans = trans + rot_vec(rot, shift) * mask.unsqueeze(-1)
            traj.append(trans)
            loss = loss + self.fape(quat_to_rot(quat), trans * 10.0, t_rot, t_trans, mask).mean()
            quat = quat.detach() if i < self.n_iter - 1 else quat
        a = self.ang_i(F.relu(s)) + self.ang_s(F.relu(s_init))
        for l1, l2 in zip(self.ang_res[0::2], self.ang_res[1::2]):
            a = a + l2(F.relu(l1(F.relu(a))))
        raw = self.ang_out(F.relu(a)).view(b, n, 7, 2)
        norm = torch.sqrt(raw.pow(2).sum(-1, keepdim=True).clamp(min=1e-6))
        ang, ref = raw / norm, torch.stack([t_ang.sin(), t_ang.cos()], dim=-1)
        alt = torch.cat([ref[..., :5, :], -ref[..., 5:, :]], dim=-2)
        d = torch.minimum((ang - ref).pow(2).sum(-1), (ang - alt).pow(2).sum(-1)).mean(-1)
        l_ang = (d + 0.02 * (norm.squeeze(-1) - 1.0).abs().mean(-1)) * mask
        loss = loss / self.n_iter + 0.5 * l_ang.sum() / mask.sum()
        return loss, torch.stack(traj, dim=1), ang, self.plddt(s).softmax(-1)


def get_inputs():
    b, n = 2, 67
    frames = [torch.randn(b, n, 4), torch.randn(b, n, 3) * 8, torch.randn(b, n, 7)]
    return [torch.randn(b, n, 320), torch.randn(b, n, n, 72), torch.randint(0, 3, (b, n)).cumsum(1), *frames,
            (torch.rand(b, n) > 0.1).float()]


def get_init_inputs():
    return [320, 72, 16, 12, 4, 8, 4, 50]
