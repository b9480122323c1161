import torch
import torch.nn as nn


class Model(nn.Module):
    """Time stepping: RK4 Lorenz, leapfrog n-body, wave equation with in-place borders, Jacobi pressure solve and lattice streaming."""

    def __init__(self, steps):
        super().__init__()
        self.steps = steps
        self.params = nn.Parameter(torch.tensor([10.0, 28.0, 8.0 / 3.0]))
        self.log_c = nn.Parameter(torch.tensor(-1.0))

    def lorenz(self, s):
        x, y, z = s.unbind(-1)
        a, b, c = self.params
        return torch.stack([a * (y - x), x * (b - z) - y, x * y - c * z], -1)

    def accel(self, pos, mass):
        d = pos[:, None] - pos[None]
        r2 = d.square().sum(-1) + 0.1
        return -(d * (mass[None, :, None] * (r2 ** -1.5)[..., None])).sum(1)

    def forward(self, s, pos, vel, mass, field, solid):
        dt = 0.01
        traj = [s]
        for _ in range(self.steps):
            k1 = self.lorenz(s)
            k2 = self.lorenz(s + dt / 2 * k1)
            k3 = self.lorenz(torch.add(s, k2, alpha=dt / 2))
            k4 = self.lorenz(s + dt * k3)
            s = s + dt / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
            traj.append(s)
        traj = torch.stack(traj)

        acc = self.accel(pos, mass)
        for _ in range(3):
            vel = vel + 0.5 * dt * acc
            pos = pos.addcmul(vel, torch.ones_like(vel), value=dt)
            acc = self.accel(pos, mass)
            vel = vel + 0.5 * dt * acc
        energy = 0.5 * (mass * vel.square().sum(-1)).sum()
        ang = torch.linalg.cross(pos, vel * mass[:, None]).sum(0)

        c2 = self.log_c.exp()
        u0 = field
        u1 = field.clone()
        for _ in range(self.steps):
            nxt = 2 * u1 - u0
            nxt[1:-1, 1:-1] += c2 * (u1[2:, 1:-1] + u1[:-2, 1:-1] + u1[1:-1, 2:] + u1[1:-1, :-2] - 4 * u1[1:-1, 1:-1])
            nxt[0], nxt[-1] = nxt[1], 0
            nxt[:, 0] = nxt[:, -2]
            nxt = nxt.masked_fill(solid, 0.0)
            u0, u1 = u1, nxt

        div = torch.gradient(u1, dim=0)[0] + torch.gradient(u1, spacing=0.5, dim=1)[0]
        p = torch.zeros_like(div)
        for _ in range(4):
            q = nn.functional.pad(p[None, None], (1, 1, 1, 1), mode="replicate")[0, 0]
            p = torch.where(solid, p * 0.5, 0.25 * (q[2:, 1:-1] + q[:-2, 1:-1] + q[1:-1, 2:] + q[1:-1, :-2] - div))
        f = torch.stack([torch.roll(p, (dx, dy), (0, 1)) for dx in (-1, 0, 1) for dy in (-1, 0, 1)])
        f = torch.where(solid, f.flip(0), f)
        rho = f.sum(0)
        work = torch.trapezoid(traj.square().sum(-1), dx=dt, dim=0)
        prog = torch.cumulative_trapezoid(rho, dim=1)
        return {"traj": traj, "nbody": (pos, vel, energy, ang), "wave": u1, "p": p, "rho": rho, "work": work, "prog": prog}


def get_inputs():
    return [torch.randn(31, 3), torch.randn(29, 3), torch.randn(29, 3) * 0.1, torch.rand(29) + 0.5, torch.randn(37, 53), torch.rand(37, 53) < 0.1]


def get_init_inputs():
    return [6]
