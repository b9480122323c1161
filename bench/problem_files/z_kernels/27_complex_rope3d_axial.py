import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """3-D rotary positions by complex products on rank-6 tensors, RMS of q and k, cosine axial attention over W."""

    def __init__(self, heads, dh, base):
        super().__init__()
        self.n = dh // 6
        self.register_buffer("freq", base ** (-torch.arange(self.n, dtype=torch.float32) / self.n))
        self.gq = nn.Parameter(torch.ones(dh))
        self.gk = nn.Parameter(torch.ones(dh))
        self.tau = nn.Parameter(torch.full((heads, 1, 1), 2.0))

    def forward(self, q, k, v):
        b, t, h, w, nh, d = q.shape
        ang = []
        for ax, size in enumerate((t, h, w)):
            shape = [1, 1, 1, self.n]
            shape[ax] = size
            a = torch.outer(torch.arange(size, device=q.device, dtype=q.dtype), self.freq)
            ang.append(a.view(*shape).expand(t, h, w, self.n))
        ang = torch.cat(ang, -1).unsqueeze(3)
        rot = torch.polar(torch.ones_like(ang), ang)

        def turn(x, g):
            x = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * g
            z = torch.view_as_complex(x.reshape(b, t, h, w, nh, d // 2, 2)) * rot
            return F.normalize(torch.view_as_real(z).flatten(-2), dim=-1)

        q, k = turn(q, self.gq), turn(k, self.gk)
        s = torch.einsum("bthind,bthjnd->bthnij", q, k) * self.tau.exp()
        return torch.einsum("bthnij,bthjnd->bthind", torch.softmax(s, -1), v)


def get_inputs():
    return [torch.randn(5, 5, 18, 22, 12, 60), torch.randn(5, 5, 18, 22, 12, 60), torch.randn(5, 5, 18, 22, 12, 60)]


def get_init_inputs():
    return [12, 60, 100.0]
