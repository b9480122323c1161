import torch
import torch.nn as nn


class Model(nn.Module):
    """D2Q9 lattice Boltzmann (BGK) with obstacle bounce-back and periodic streaming."""

    def __init__(self, tau, steps, height, width):
        super().__init__()
        self.omega = 1.0 / tau
        self.steps = steps
        self.cx = [0, 1, 0, -1, 0, 1, -1, -1, 1]
        self.cy = [0, 0, 1, 0, -1, 1, 1, -1, -1]
        self.register_buffer("c", torch.tensor([self.cx, self.cy], dtype=torch.float32))
        self.register_buffer("w", torch.tensor([4 / 9] + [1 / 9] * 4 + [1 / 36] * 4))
        self.register_buffer("opp", torch.tensor([0, 3, 4, 1, 2, 7, 8, 5, 6]))
        yy, xx = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
        solid = (yy - height // 2) ** 2 + (xx - width // 4) ** 2 < (height // 7) ** 2
        self.register_buffer("solid", solid)

    def equilibrium(self, rho, u):
        # rho (B,H,W), u (B,2,H,W)
        cu = torch.einsum("aq,bahw->bqhw", self.c, u)
        usq = (u * u).sum(dim=1, keepdim=True)
        return self.w[None, :, None, None] * rho[:, None] * (1 + 3 * cu + 4.5 * cu * cu - 1.5 * usq)

    def forward(self, rho, u):
        f = self.equilibrium(rho, u)
        for _ in range(self.steps):
            rho = f.sum(dim=1)
            mom = torch.einsum("aq,bqhw->bahw", self.c, f)
            vel = mom / rho.unsqueeze(1)
            feq = self.equilibrium(rho, vel)
            fout = f - self.omega * (f - feq)
            fout = torch.where(self.solid, f[:, self.opp], fout)
            f = torch.stack(
                [torch.roll(fout[:, q], shifts=(self.cy[q], self.cx[q]), dims=(1, 2)) for q in range(9)],
                dim=1,
            )
        rho = f.sum(dim=1)
        vel = torch.einsum("aq,bqhw->bahw", self.c, f) / rho.unsqueeze(1)
        vel = vel.masked_fill(self.solid, 0.0)
        vort = (torch.roll(vel[:, 1], -1, 2) - torch.roll(vel[:, 1], 1, 2)
                - torch.roll(vel[:, 0], -1, 1) + torch.roll(vel[:, 0], 1, 1)) * 0.5
        return rho, vel, vort


def get_inputs():
    B, H, W = 1, 62, 130
    rho = 1.0 + 0.02 * torch.randn(B, H, W)
    u = 0.05 * torch.randn(B, 2, H, W)
    u[:, 0] += 0.08
    return [rho, u]


def get_init_inputs():
    return [0.8, 4, 62, 130]
