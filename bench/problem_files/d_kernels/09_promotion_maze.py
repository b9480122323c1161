import torch
import torch.nn as nn


class Model(nn.Module):
    """Type promotion across int8, uint8, bool, half, float and 0-d tensors, with wraparound and integer reductions in between."""

    def __init__(self, width):
        super().__init__()
        self.w = nn.Parameter(torch.randn(width))
        self.register_buffer("half_scalar", torch.tensor(0.5, dtype=torch.float16))
        self.register_buffer("double_scalar", torch.tensor(1.0 / 3.0, dtype=torch.float64))

    def forward(self, x, a, u, flag):
        wrap8 = a + a  # int8 wraparound
        wide = a + u  # int8 + uint8 -> int16
        under = u - 200  # uint8 wraparound
        half = a * self.half_scalar  # float16, the 0-d tensor decides
        count = flag.sum(dim=1, keepdim=True)  # int64
        either = (flag + (a > 3)) * wrap8  # bool + bool -> or, then int8
        avg = wide.sum(dim=-1, keepdim=True).to(x.dtype) / wide.shape[-1]
        y = x * self.double_scalar + half  # stays float32
        z = y * flag + torch.true_divide(under, count + 1) * self.w
        return z + either.sum(dim=2, keepdim=True) * 0.01 - avg + flag.float().mean(dim=0)


def get_inputs():
    s = (43, 179, 103)
    return [
        torch.randn(*s),
        torch.randint(-128, 128, s, dtype=torch.int64).to(torch.int8),
        torch.randint(0, 256, s, dtype=torch.int64).to(torch.uint8),
        torch.rand(*s) > 0.35,
    ]


def get_init_inputs():
    return [103]
