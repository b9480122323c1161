import torch
import torch.nn as nn
import torch.nn.functional as F

LEVELS = [-1.0, -0.6961928, -0.5250731, -0.3949175, -0.2844414, -0.1847734, -0.0910500, 0.0,
          0.0795803, 0.1609302, 0.2461123, 0.3379152, 0.4407098, 0.5626170, 0.7229568, 1.0]


class Model(nn.Module):
    def __init__(self, dim, hidden, block, outer, rank, alpha):
        super().__init__()
        self.dim, self.hidden, self.block, self.outer, self.alpha = dim, hidden, block, outer, alpha / rank
        blocks = dim * 2 * hidden // block
        self.register_buffer("table", torch.tensor(LEVELS))
        self.register_buffer("packed", torch.randint(0, 256, (dim * hidden,), dtype=torch.uint8))
        self.register_buffer("absmax_q", torch.randint(0, 256, (blocks,), dtype=torch.uint8))
        self.register_buffer("absmax_scale", torch.rand(blocks // outer) * 0.0008 + 0.0004)
        self.register_buffer("offset", torch.tensor(0.15))
        self.register_buffer("down_q", torch.randint(-127, 128, (dim, hidden), dtype=torch.int8))
        self.register_buffer("down_scale", torch.rand(dim) * 0.002 + 0.0005)
        self.register_buffer("smooth", torch.rand(hidden) + 0.5)
        self.lora_a = nn.Parameter((torch.randn(rank, dim) * dim ** -0.5).to(torch.bfloat16))
        self.lora_b = nn.Parameter((0.1 * torch.randn(2 * hidden, rank)).to(torch.bfloat16))

    def nf4(self):
        hi = (self.packed >> 4).long()
        lo = (self.packed & 15).long()
        vals = self.table[torch.stack((hi, lo), -1)].view(-1, self.block)
        am = (self.absmax_q.float() - 128).view(-1, self.outer) * self.absmax_scale.unsqueeze(1)
        am = am.reshape(-1, 1) + self.offset
        return (vals * am).view(2 * self.hidden, self.dim).to(torch.bfloat16)

    def forward(self, x):
        base = F.linear(x, self.nf4())
        low = F.linear(F.linear(x, self.lora_a), self.lora_b) * self.alpha
        gate, up = (base + low).chunk(2, dim=-1)
        h = (F.silu(gate.float()) * up.float()) / self.smooth
        s = h.abs().amax(-1, keepdim=True).clamp_min(1e-5) / 127
        q = torch.round(h / s).clamp(-127, 127)
        w = self.down_q.to(torch.float32) * self.smooth
        y = (q @ w.T) * s * self.down_scale
        zp = y.amin(-1, keepdim=True)
        step = (y.amax(-1, keepdim=True) - zp).clamp_min(1e-6) / 255
        code = torch.clamp((y - zp) / step, 0, 255)
        err = (h - q * s).square().mean(-1)
        return (x.float() + y).to(x.dtype), code.mean(-1), err


def get_inputs():
    return [torch.randn(3, 89, 160).to(torch.bfloat16)]


def get_init_inputs():
    return [160, 256, 64, 32, 8, 16.0]
