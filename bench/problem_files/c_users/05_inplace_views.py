import torch
import torch.nn as nn


class Model(nn.Module):
    """In-place writes through slices, transposes, diagonals and expanded views, with aliasing read back afterwards."""

    def __init__(self, n):
        super().__init__()
        self.scale = nn.Parameter(torch.rand(n) + 0.5)

    def forward(self, x, mask, idx):
        y = x * self.scale
        base = y.clone()
        left, right = base[:, :105], base[:, 105:]
        left.mul_(2).add_(right[:, :105], alpha=-0.5)
        base[::2, 1::3] += 1.0
        base.t()[5:9] -= base.t()[15:19]
        base.diagonal().copy_(y.diagonal().tanh())
        base.diagonal(offset=3).fill_(0.25)
        base[:, -7:].neg_()
        base[3].zero_()
        right[mask[:, None].expand_as(right)] = -1.5

        z = torch.zeros_like(y)
        z[1:-1, 1:-1] = base[:-2, 1:-1] + base[2:, 1:-1]
        z[[0, -1]] = y[[4, 2]]
        z[:, 0] = z[:, -2]
        v = z.view(-1)
        v[7::13].clamp_(min=-0.5, max=0.5)
        z.masked_fill_(mask[:, None], 3.0)
        z.index_add_(1, idx, y[:, : idx.numel()], alpha=0.1)
        z.index_copy_(0, idx[:4], y[10:14])
        z[:, 20:40][2:30, ::4].sub_(y[2:30, 20:40:4].square())

        w = y.unsqueeze(0).repeat(3, 1, 1)
        w[1].copy_(z)
        w[2, :, 5:] = w[0, :, :-5]
        a, b = w[0], w.select(0, 2)
        a.add_(b)
        w.narrow(2, 26, 26).mul_(0.5)
        w.as_strided((3, 11), (1, 3), 7).add_(1.0)
        return base, z, w, left.sum(1), right.t()[3], a - b


def get_inputs():
    perm = torch.randint(0, 100000, (61,)).argsort()
    return [torch.randn(187, 211), torch.randint(0, 4, (187,)) == 0, perm * 3]


def get_init_inputs():
    return [211]
