import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """Low-precision emulation: int8 quantised matmul, bf16 islands, float64 accumulations, bool arithmetic, promotion and an autocast region switched off."""

    def __init__(self, d, h):
        super().__init__()
        self.up = nn.Linear(d, h)
        self.down = nn.Linear(h, d)
        self.register_buffer("codebook", torch.tensor([-1.0, -0.7, -0.5, -0.4, -0.28, -0.18, -0.09, 0.0, 0.08, 0.16, 0.25, 0.34, 0.44, 0.56, 0.72, 1.0]))

    def forward(self, x, codes, xi, flag, scale8):
        dt = x.dtype
        nib = torch.stack([codes & 15, codes >> 4], -1).flatten(1)
        w4 = self.codebook[nib.long()] * scale8.to(dt).exp2()[:, None].reciprocal()
        y = F.linear(x, w4)

        acc = xi.to(torch.int32) @ xi.to(torch.int32).t() if xi.device.type == "cpu" else (xi.double() @ xi.double().t()).to(torch.int32)
        deq = acc.to(dt) * (1.0 / 127)
        with torch.autocast(device_type=x.device.type, enabled=False):
            hidden = F.silu(self.up(x))
            z = self.down(hidden)
        hb = x.detach().to(torch.bfloat16)
        lossless = hb.float() * 2.0 + (hb * 0.5).float()
        half = (xi.to(torch.float16) / 4 + 1).to(dt)
        wide = x.double().cumsum(0).sub(x.double().mean(0)).pow(3).mean(0)
        var = (x.double().square().sum(1) - x.double().sum(1).square() / x.shape[1]).clamp(min=0).to(dt)

        cnt = flag.sum(1) + flag.to(torch.uint8).sum(1, dtype=torch.int32)
        both = flag * flag.roll(1, 1) + flag
        tri = (flag | flag.flip(1)) & ~(flag ^ flag.roll(2, 1))
        mean = tri.to(dt).mean(1) + flag.float().std(1).to(dt)
        prom = (flag + 1, flag * 1.5, xi + flag, xi * 2, xi.to(torch.uint8) + xi, xi / 3, (xi + 1.0), torch.where(flag[:, :1], xi, 7))
        anyall = torch.stack([flag.any(1), flag.all(1), flag[:, :3].all(1)], 0)
        am = flag.to(torch.int16).argmax(1) * 2 - flag.long().cumsum(1).amax(1)
        i = torch.where(flag, torch.tensor(3, device=x.device), torch.tensor(2, dtype=torch.int8, device=x.device))
        full = torch.full_like(xi, -3) ** 3 + xi.clamp(-5, 5)
        bits = x.new_tensor([1, 2, 4, 8]) * flag[:, :4]
        packed = (flag[:, :8].to(torch.uint8) << torch.arange(8, device=x.device, dtype=torch.uint8)).sum(1, dtype=torch.uint8)
        fin = torch.nan_to_num(torch.where(flag[:, :1], x, x.new_full((), float("inf"))), posinf=2.5, neginf=-2.5)
        ok = torch.isfinite(torch.where(flag[:, 1:2], x / 1, float("nan"))) & x.isnan().logical_not()
        return {"y": y, "deq": deq, "z": z, "lossless": lossless, "half": half, "wide": wide, "var": var, "ints": (cnt, both, am, i, full, packed),
                "prom": prom, "bools": (tri, anyall, ok), "mean": mean, "bits": bits, "fin": fin}


def get_inputs():
    return [torch.randint(-64, 64, (83, 62)) / 32.0 + torch.randint(0, 2, (83, 62)) / 64.0, torch.randint(0, 256, (41, 31), dtype=torch.uint8), torch.randint(-128, 128, (83, 57), dtype=torch.int8),
            torch.rand(83, 57) < 0.4, torch.randint(0, 4, (41,), dtype=torch.int8)]


def get_init_inputs():
    return [62, 131]
