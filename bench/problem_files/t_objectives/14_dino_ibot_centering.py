import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """DINO multi-crop + iBOT masked patch loss with centring, returns loss and updated centres."""

    def __init__(self, dim, n_proto, n_crops, student_temp, teacher_temp, momentum):
        super().__init__()
        self.n_crops = n_crops
        self.student_temp = student_temp
        self.teacher_temp = teacher_temp
        self.momentum = momentum
        self.last_v = nn.Parameter(torch.randn(n_proto, dim))
        self.patch_v = nn.Parameter(torch.randn(n_proto // 2, dim))
        self.register_buffer("center", torch.zeros(1, n_proto))
        self.register_buffer("patch_center", torch.zeros(1, 1, n_proto // 2))

    @staticmethod
    def prototype(x, v):
        return F.linear(F.normalize(x, dim=-1), F.normalize(v, dim=-1))

    def forward(self, student_cls, teacher_cls, student_patch, teacher_patch, mask):
        s = self.prototype(student_cls, self.last_v) / self.student_temp
        s_chunks = s.chunk(self.n_crops)
        with torch.no_grad():
            t_raw = self.prototype(teacher_cls, self.last_v)
            t = F.softmax((t_raw - self.center) / self.teacher_temp, dim=-1).chunk(2)
            tp_raw = self.prototype(teacher_patch, self.patch_v)
            tp = F.softmax((tp_raw - self.patch_center) / self.teacher_temp, dim=-1)

        total, n_terms = 0.0, 0
        for iq, q in enumerate(t):
            for v in range(len(s_chunks)):
                if v == iq:
                    continue
                loss = torch.sum(-q * F.log_softmax(s_chunks[v], dim=-1), dim=-1)
                total = total + loss.mean()
                n_terms += 1
        total = total / n_terms

        sp = self.prototype(student_patch, self.patch_v) / self.student_temp
        ce = torch.sum(-tp * F.log_softmax(sp, dim=-1), dim=-1)
        ce = torch.sum(ce * mask.float(), dim=-1) / mask.sum(dim=-1).clamp(min=1.0)
        patch_loss = ce.mean()

        z = F.normalize(student_cls[: teacher_cls.shape[0]], dim=-1)
        dots = (z @ z.t()).masked_fill(torch.eye(z.shape[0], dtype=torch.bool), -1.0)
        nn_idx = dots.detach().argmax(1)
        koleo = -torch.log(F.pairwise_distance(z, z[nn_idx]) + 1e-8).mean()

        new_center = self.center * self.momentum + t_raw.mean(0, keepdim=True) * (1 - self.momentum)
        return total + patch_loss + 0.1 * koleo, new_center


def get_inputs():
    B = 9
    return [
        torch.randn(B * 6, 64),
        torch.randn(B * 2, 64),
        torch.randn(B * 2, 49, 64),
        torch.randn(B * 2, 49, 64),
        torch.rand(B * 2, 49) > 0.6,
    ]


def get_init_inputs():
    return [64, 512, 6, 0.1, 0.07, 0.9]
