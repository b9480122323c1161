import torch
import torch.nn as nn


class Model(nn.Module):
    """GPTQ-like layer: 4-bit values unpacked by shifts, groups by an index, scales and packed zeros, then product."""

    def __init__(self, groups, n):
        super().__init__()
        self.scales = nn.Parameter(torch.rand(groups, n) * 0.01 + 0.002)
        self.bias = nn.Parameter(torch.zeros(n))

    def forward(self, x, qweight, qzeros, g_idx, inv_smooth):
        sh = torch.arange(0, 32, 4, device=x.device)
        w = torch.bitwise_and(torch.bitwise_right_shift(qweight.unsqueeze(1), sh.view(1, 8, 1)), 15)
        w = w.reshape(-1, qweight.shape[1])
        z = torch.bitwise_and(torch.bitwise_right_shift(qzeros.unsqueeze(2), sh.view(1, 1, 8)), 15)
        z = z.reshape(qzeros.shape[0], -1) + 1
        wf = (w - z[g_idx]).to(x.dtype) * self.scales[g_idx]
        y = (x * inv_smooth) @ wf + self.bias
        return y * torch.sigmoid(1.702 * y)


def get_inputs():
    k, n, g = 4096, 3072, 32
    return [torch.randn(333, k), torch.randint(0, 2 ** 32, (k // 8, n)), torch.randint(0, 2 ** 32, (g, n // 8)),
            torch.randint(0, g, (k,)), torch.rand(k) + 0.5]


def get_init_inputs():
    return [32, 3072]
