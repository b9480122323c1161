import torch
import torch.nn as nn


class Model(nn.Module):
    """A recurrent net whose modules run at different rates: at each step only those whose period divides the step number update, reading themselves and slower ones."""

    def __init__(self, inputs, modules, size):
        super().__init__()
        self.modules_, self.size = modules, size
        hidden = modules * size
        self.w_in = nn.Parameter(torch.randn(inputs, hidden) / inputs ** 0.5)
        self.w_rec = nn.Parameter(1.2 * torch.randn(hidden, hidden) / hidden ** 0.5)
        self.bias = nn.Parameter(0.1 * torch.randn(hidden))
        block = torch.arange(hidden) // size
        self.register_buffer("mask", (block[:, None] >= block[None, :]).float())

    def forward(self, x):
        b, t, _ = x.shape
        w = self.w_rec * self.mask
        drive = x @ self.w_in + self.bias
        h = x.new_zeros(b, w.shape[0])
        seen = []
        for i in range(t):
            active = sum(1 for m in range(self.modules_) if i % 2 ** m == 0) * self.size
            new = torch.tanh(drive[:, i, :active] + h @ w[:, :active])
            h = torch.cat([new, h[:, active:]], dim=1)
            seen.append(h.view(b, self.modules_, self.size).mean(dim=2))
        path = torch.stack(seen, dim=1)  # (B, T, modules)
        return h, path, path.diff(dim=1).abs().sum(dim=1)


def get_inputs():
    return [torch.randn(37, 61, 23)]


def get_init_inputs():
    return [23, 6, 17]
