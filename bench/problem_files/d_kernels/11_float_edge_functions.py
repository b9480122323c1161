import torch
import torch.nn as nn


class Model(nn.Module):
    """Edge values of xlogy, logit, erfinv, hypot, copysign, atan2 on signed zeros, nextafter, and a frexp/ldexp round trip."""

    def __init__(self, width):
        super().__init__()
        self.w = nn.Parameter(torch.randn(5, width) * 0.5)

    def forward(self, p, u, z):
        ent = torch.xlogy(p, p) + torch.special.xlog1py(1.0 - p, -p)  # 0 log 0 twice
        lg = torch.logit(p, eps=1e-3)
        ei = torch.erfinv(u).clamp(-4.0, 4.0)  # +-inf at +-1
        sg = torch.copysign(torch.hypot(u, p + 0.25), z)  # z is -0.0 or +0.0
        ang = torch.atan2(z, u.detach())  # exactly 0 or +-pi
        mant, expo = torch.frexp(lg)
        back = torch.ldexp(mant, expo - 2)
        ulp = (u - torch.nextafter(u.detach(), z.detach())) * 4194304.0
        y = ent * self.w[0] + back * self.w[1] + ei * self.w[2] + sg * self.w[3] + (ang + ulp) * self.w[4]
        return y - torch.signbit(z).sum(dim=1, keepdim=True) / z.shape[1]


def get_inputs():
    p = torch.rand(1021, 773)
    p[::9, ::4] = 0.0
    p[4::9, 1::4] = 1.0
    u = torch.rand(1021, 773) * 2.0 - 1.0
    u[::13, ::6] = 1.0
    u[5::13, ::6] = -1.0
    z = torch.where(torch.rand(1021, 773) > 0.5, torch.tensor(0.0), torch.tensor(-0.0))
    return [p, u, z]


def get_init_inputs():
    return [773]
